package upstream

import (
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/watchproxy/watchproxy/watchcache/object"
	"github.com/watchproxy/watchproxy/watchcache/upstream/client"
	"github.com/watchproxy/watchproxy/watchcache/upstream/feed"
)

// agedUpstream is another proxy. While it is aged, it answers some reads with the state that it had
// when it became aged, and an Age header.
type agedUpstream struct {
	*fakeUpstream
	mu struct {
		sync.Mutex
		rv    uint64 // of that state; 0 if it is not aged
		path  string // part of the paths that it answers in this way
		asked int    // number of such answers
		still bool   // a request lacked Cache-Control: no-cache
	}
}

func (a *agedUpstream) age(path string) {
	rv := a.revision()
	a.mu.Lock()
	defer a.mu.Unlock()
	a.mu.rv, a.mu.path, a.mu.asked = rv, path, 0
}

func (a *agedUpstream) answered() int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.mu.asked
}

func (a *agedUpstream) RoundTrip(req *http.Request) (*http.Response, error) {
	a.mu.Lock()
	rv := a.mu.rv
	a.mu.still = a.mu.still || req.URL.Path != "/readyz" && req.Header.Get("Cache-Control") != "no-cache"
	aged := rv != 0 && strings.Contains(req.URL.Path, a.mu.path) && !req.URL.Query().Has("resourceVersion") && !req.URL.Query().Has("watch")
	if aged {
		a.mu.asked++
	}
	a.mu.Unlock()
	if !aged {
		return a.fakeUpstream.RoundTrip(req)
	}
	var resp *http.Response
	a.locked(func() {
		if strings.Contains(req.URL.Path, client.NoSuchNamespace) {
			resp = reply(http.StatusOK, fmt.Sprintf(`{"kind":"ConfigMapList","apiVersion":"v1","metadata":{"resourceVersion":"%d"},"items":[]}`, rv))
		} else {
			resp, _ = listOf(a.stateAtLocked(rv), rv, "", "")
		}
	})
	resp.Header.Set("Age", "1")
	return resp, nil
}

// An answer with an age is no proof that a cache is up to date: neither a probe of another resource
// in the same etcd, nor a probe, nor a list of the resource itself. Below a known revision, it is no sign of
// a restored etcd, so watches go on. A feed does not begin with such a state, nor does it wait for a better
// one.
func TestAgedAnswers(t *testing.T) {
	for name, c := range map[string]struct {
		objects int
		path    string
		ledger  bool
	}{
		"probe of events": {feed.SmallObjects + 1, client.NoSuchNamespace + "/events", true},
		"probe":           {feed.SmallObjects + 1, client.NoSuchNamespace + "/configmaps", false},
		"list":            {3, "/configmaps", false},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFake()
				a := &agedUpstream{fakeUpstream: f}
				fill(f, c.objects)
				feeds := start(t, a, func(o *feed.Options) { o.Ledger = c.ledger })
				cached := openFrom(t, feeds)
				for range 100 {
					f.other("leases")
					same(t, f, readFresh(t, f, cached))
					time.Sleep(100 * time.Millisecond)
				}
				synctest.Wait()
				before := cached.Cache().Stats()
				a.age(c.path)
				f.stall(true) // the event is on its way
				f.set("o000", "acknowledged")
				s, err := cached.Fresh(t.Context(), true)
				if a.answered() == 0 {
					t.Error("no answer was aged")
				}
				if err == nil {
					same(t, f, s)
				} else if c.ledger || !errors.Is(err, client.ErrAged) {
					t.Error(err)
				}
				time.Sleep(client.Steady)
				if after := cached.Cache().Stats(); after.Epoch != before.Epoch {
					t.Errorf("epoch %d became %d", before.Epoch, after.Epoch)
				}
				began := time.Now()
				if _, err := feeds.Open(t.Context(), configmaps, object.Want{}, object.Protobuf, 0); !c.ledger && (!errors.Is(err, client.ErrAged) || time.Since(began) > time.Second) {
					t.Errorf("another feed: %v after %s", err, time.Since(began))
				}
				a.mu.Lock()
				defer a.mu.Unlock()
				if a.mu.still {
					t.Error("a request may be answered from a cache")
				}
			})
		})
	}
}
