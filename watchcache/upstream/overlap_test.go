package upstream

import (
	"errors"
	"fmt"
	"math"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/watchproxy/watchproxy/watchcache"
	"github.com/watchproxy/watchproxy/watchcache/upstream/client"
	"github.com/watchproxy/watchproxy/watchcache/upstream/feed"
	"github.com/watchproxy/watchproxy/watchcache/upstream/fresh"
)

// During the read of a state, these tests start freshness runs, changes of definitions, and
// restores.

// Readers that detect a restore must not prevent the feed from reading the restored state.
func TestReadersLetARestoreBeRead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, feed := filledFeed(t, fewObjects+100)
		for i := range 300 {
			f.set("o001", fmt.Sprint(i))
		}
		synctest.Wait()
		f.restore(110, 0)
		f.set("z", "1")
		f.slowState(700 * time.Millisecond)
		before := f.count("state")
		for range 60 { // two reads a second
			_, _ = feed.Fresh(t.Context(), true)
			time.Sleep(500 * time.Millisecond)
		}
		same(t, f, readFresh(t, f, feed))
		if n := f.count("state") - before; n > 3 {
			t.Errorf("%d syncs", n)
		}
	})
}

// During a relist, a reader brings the cache to a newer state than the relist's. The relist must
// not reset the cache to its older state.
func TestRelistDoesNotUndoAFastForward(t *testing.T) {
	for _, objects := range []int{3, feed.SmallObjects + 1} {
		t.Run(fmt.Sprint(objects), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f, feed := filledFeed(t, objects)
				synctest.Wait()
				cursor := watchAll(t, feed.Cache())
				f.slowState(5 * time.Second)
				f.set("o001", "x")
				synctest.Wait()
				f.locked(func() { f.mu.oldest = f.mu.rev + 1 }) // the stream ends, its resume gets 410, and the feed relists
				f.cutStreams(false)
				time.Sleep(time.Second)
				f.locked(func() { f.mu.oldest = 0 })
				f.set("o002", "acknowledged")
				got := readFresh(t, f, feed).ResourceVersion()
				for range 20 {
					time.Sleep(500 * time.Millisecond)
					if s, err := feed.Cache().Snapshot(); err != nil || s.ResourceVersion() < got {
						t.Fatalf("the cache went back from %d to %d: %v", got, s.ResourceVersion(), err)
					}
				}
				same(t, f, readFresh(t, f, feed))
				if _, _, err := cursor.Poll(nil, 100, math.MaxInt); err != nil {
					t.Errorf("the watch ended: %v", err)
				}
			})
		})
	}
}

// roundTrip is a function that acts as upstream.
type roundTrip func(*http.Request) (*http.Response, error)

// RoundTrip implements http.RoundTripper.
func (r roundTrip) RoundTrip(req *http.Request) (*http.Response, error) { return r(req) }

// A feed that is abandoned during its first sync writes nothing afterwards.
func TestAbandonedDuringItsSync(t *testing.T) {
	f := newFake()
	var abandoned *feed.Feed
	feeds := start(t, roundTrip(func(req *http.Request) (*http.Response, error) {
		if req.URL.Query().Get("sendInitialEvents") != "true" {
			return f.RoundTrip(req)
		}
		abandoned.Abandon()
		return reply(200, `{"type":"BOOKMARK","object":`+bookmarkJSON(100, true)+"}\n"+`{"type":"BOOKMARK","object":`+bookmarkJSON(101, false)+"}\n"), nil
	}))
	abandoned = feed.New(t.Context(), feeds.shared, feed.Key{GVR: configmaps}, time.Now(), watchcache.Limits{})
	if err := abandoned.Run(func() {}); err != nil {
		t.Error(err)
	}
	if _, err := abandoned.Cache().Snapshot(); !errors.Is(err, watchcache.ErrEnded) {
		t.Errorf("got %v", err)
	}
}

var widgets = schema.GroupVersionResource{Group: "example.com", Version: "v1", Resource: "widgets"}

// widgetUpstream serves one custom object. Its first stream ends cleanly. Then the object's bytes
// change, as after a change of the definition.
func widgetUpstream(definitions func(*http.Request) (*http.Response, error)) roundTrip {
	var mu sync.Mutex
	version := "old"
	return func(req *http.Request) (*http.Response, error) {
		mu.Lock()
		defer mu.Unlock()
		q, path := req.URL.Query(), req.URL.Path
		switch {
		case strings.Contains(path, "customresourcedefinitions") && q.Get("watch") != "":
			return silentAfter(req, ""), nil
		case strings.Contains(path, "customresourcedefinitions"):
			return definitions(req)
		case path == "/version", strings.Contains(path, "apiservices"):
			return reply(404, `{"kind":"Status","reason":"NotFound","code":404}`), nil
		case path == "/apis":
			return reply(200, `{"kind":"APIGroupList","groups":[{"name":"example.com","versions":[{"version":"v1"}]}]}`), nil
		case path == "/apis/example.com/v1":
			return reply(200, `{"kind":"APIResourceList","resources":[{"name":"widgets","namespaced":true,"kind":"Widget","verbs":["get","list","watch"]}]}`), nil
		case strings.Contains(path, client.NoSuchNamespace):
			return reply(200, `{"apiVersion":"example.com/v1","items":[],"kind":"WidgetList","metadata":{"continue":"","resourceVersion":"100"}}`), nil
		case strings.HasSuffix(path, "/v1/widgets") && q.Get("watch") == "":
			return reply(200, `{"apiVersion":"example.com/v1","items":[{"apiVersion":"example.com/v1","kind":"Widget",`+
				`"metadata":{"name":"a","namespace":"ns","resourceVersion":"50","uid":"u"},"spec":{"v":"new"}}],"kind":"WidgetList","metadata":{"resourceVersion":"100"}}`), nil
		case q.Get("sendInitialEvents") == "true":
			body := fmt.Sprintf(`{"type":"ADDED","object":{"apiVersion":"example.com/v1","kind":"Widget","metadata":{"name":"a","namespace":"ns","resourceVersion":"50","uid":"u"},"spec":{"v":%q}}}`+"\n"+
				`{"type":"BOOKMARK","object":{"apiVersion":"example.com/v1","kind":"Widget","metadata":{"annotations":{"k8s.io/initial-events-end":"true"},"resourceVersion":"100"}}}`+"\n", version)
			if version == "new" {
				return silentAfter(req, body), nil
			}
			version = "new"
			return reply(200, body), nil
		}
		return silentAfter(req, ""), nil
	}
}

// A single page never counts as the whole state.
func TestPageIsNoState(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		fill(f, 3)
		feed := openFrom(t, start(t, roundTrip(func(req *http.Request) (*http.Response, error) {
			if q := req.URL.Query(); req.URL.Path == "/api/v1/configmaps" && q.Get("watch") == "" {
				req = req.Clone(req.Context())
				q.Set("limit", "2")
				req.URL.RawQuery = q.Encode()
			}
			return f.RoundTrip(req)
		})))
		f.elsewhere()
		if s, err := feed.Fresh(t.Context(), true); !errors.Is(err, fresh.ErrNotFresh) {
			t.Errorf("%d objects of 3, %v", s.Len(), err)
		}
	})
}

// If the first stream of a custom resource ends early, the state is read again, even if the
// definition cannot be followed.
func TestCustomStreamCutShort(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		forbidden := func(*http.Request) (*http.Response, error) { return statusReply(http.StatusForbidden), nil }
		feed := openOf(t, start(t, widgetUpstream(forbidden)), widgets)
		time.Sleep(time.Minute)
		if o := readSnapshot(t, feed.Cache()).Get("ns/a"); o == nil || !strings.Contains(string(o.Bytes()), "new") {
			t.Errorf("the cache has %s", o.Bytes())
		}
	})
}
