package upstream

import (
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/watchproxy/watchproxy/watchcache/object"
	"github.com/watchproxy/watchproxy/watchcache/upstream/fresh"
)

// strictUpstream refuses lists and watches. It does not end open watches, as an apiserver does not.
type strictUpstream struct {
	*fakeUpstream
	wide, narrow atomic.Int64 // the status of refusals in all namespaces and in the namespace ns
}

// RoundTrip implements http.RoundTripper.
func (s *strictUpstream) RoundTrip(req *http.Request) (*http.Response, error) {
	before, _, ok := strings.Cut(req.URL.Path, "/configmaps")
	status := &s.wide
	if strings.HasSuffix(before, "/namespaces/ns") {
		status = &s.narrow
	}
	if code := int(status.Load()); ok && code != 0 {
		return statusReply(code), nil
	}
	return s.fakeUpstream.RoundTrip(req)
}

// read opens the cache for the readers of a namespace, who have the proxy's rights or rights of
// their own.
func read(t *testing.T, feeds *Feeds, reviewed bool) (*fresh.Feed, error) {
	t.Helper()
	return feeds.Open(t.Context(), configmaps, object.Want{Namespace: "ns", Reviewed: reviewed}, object.JSON, 0)
}

// The cache answers readers until upstream refuses the feed's next watch, when the proxy has lost
// its rights. Then they are forwarded, until upstream allows it again.
func TestLostRights(t *testing.T) {
	for _, status := range []int64{http.StatusForbidden, http.StatusUnauthorized} {
		synctest.Test(t, func(t *testing.T) {
			s := &strictUpstream{fakeUpstream: newFake()}
			s.set("a", "1")
			feeds := start(t, s)
			first, err := read(t, feeds, false)
			if err != nil {
				t.Fatal(err)
			}
			s.wide.Store(status)
			s.narrow.Store(status)
			time.Sleep(time.Minute)
			s.set("a", "2")
			if same, err := read(t, feeds, false); same != first || err != nil {
				t.Errorf("while the watch is open: %v, %v", same, err)
			}
			s.cutStreams(false)
			time.Sleep(time.Second)
			for range 60 {
				for _, reviewed := range []bool{false, true} {
					if f, err := read(t, feeds, reviewed); err == nil {
						t.Errorf("refused with %d: %v", status, f)
					}
				}
				time.Sleep(time.Second)
			}
			s.wide.Store(0)
			time.Sleep(time.Minute)
			if f, err := read(t, feeds, false); err != nil || !f.Scope.Whole() {
				t.Errorf("given back: %v, %v", f, err)
			}
		})
	}
}

// If the proxy may read one namespace only, from its next watch on, the cache of that namespace
// answers.
func TestNarrowerRights(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &strictUpstream{fakeUpstream: newFake()}
		s.set("a", "1")
		feeds := start(t, s)
		if f, err := read(t, feeds, false); err != nil || !f.Scope.Whole() {
			t.Fatal(f, err)
		}
		s.wide.Store(http.StatusForbidden)
		s.cutStreams(false)
		time.Sleep(time.Second)
		if f, err := read(t, feeds, false); err != nil || f.Scope != (object.Scope{Namespace: "ns"}) {
			t.Errorf("%v, %v", f, err)
		}
		if _, err := feeds.Open(t.Context(), configmaps, object.Want{}, object.JSON, 0); err == nil {
			t.Error("a list of all namespaces")
		}
	})
}
