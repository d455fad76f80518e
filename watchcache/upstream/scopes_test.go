package upstream

import (
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/watchproxy/watchproxy/watchcache/object"
	"github.com/watchproxy/watchproxy/watchcache/upstream/feed"
	"github.com/watchproxy/watchproxy/watchcache/upstream/fresh"
)

// narrowUpstream refuses lists and watches. It does not end open watches, as an apiserver does not.
type narrowUpstream struct {
	*fakeUpstream
	wide, narrow atomic.Int64 // the status of refusals in all namespaces and in the namespace ns; 0 for none
	tried        atomic.Int64
}

// newNarrow returns an upstream that allows the namespace ns only.
func newNarrow() *narrowUpstream {
	n := &narrowUpstream{fakeUpstream: newFake()}
	n.wide.Store(http.StatusForbidden)
	return n
}

// RoundTrip implements http.RoundTripper. Objects whose names begin with c can always be read.
func (n *narrowUpstream) RoundTrip(req *http.Request) (*http.Response, error) {
	before, _, ok := strings.Cut(req.URL.Path, "/configmaps")
	status := &n.wide
	if strings.HasSuffix(before, "/namespaces/ns") {
		status = &n.narrow
	}
	named := strings.HasPrefix(req.URL.Query().Get("fieldSelector"), "metadata.name=c")
	if code := int(status.Load()); ok && code != 0 && !named {
		n.tried.Add(1)
		return statusReply(code), nil
	}
	return n.fakeUpstream.RoundTrip(req)
}

var inNamespace = object.Want{Namespace: "ns"}

// If upstream forbids the whole resource, the cache of a namespace answers. It also answers while
// upstream is away. Once upstream allows the whole resource, the cache of the whole answers.
func TestNarrowFeed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNarrow()
		n.set("a", "1")
		feeds := start(t, n)
		f, err := feeds.Open(t.Context(), configmaps, inNamespace, object.JSON, 0)
		if err != nil || f.Scope != (object.Scope{Namespace: "ns"}) || f.Cache().Stats().Objects != 1 {
			t.Fatalf("%v, %v", f, err)
		}
		for _, w := range []object.Want{{}, {Fields: fields.ParseSelectorOrDie("metadata.namespace=ns")}} {
			_, err := feeds.Open(t.Context(), configmaps, w, object.JSON, 0)
			synctest.Wait() // until the refusal is recorded
			if !tooWide(err) || feeds.Caches(configmaps, w) {
				t.Errorf("all namespaces: %v, cached: %t", err, feeds.Caches(configmaps, w))
			}
		}
		time.Sleep(time.Hour)
		n.locked(func() { n.mu.down = errDown })
		n.cutStreams(false)
		for range 600 {
			time.Sleep(100 * time.Millisecond)
			if _, err := feeds.Open(t.Context(), configmaps, inNamespace, object.JSON, 0); err != nil || !feeds.Caches(configmaps, inNamespace) {
				t.Fatalf("while upstream is away: %v", err)
			}
		}
		began := time.Now()
		if same, err := feeds.Open(t.Context(), configmaps, inNamespace, object.JSON, 0); same != f || err != nil || time.Since(began) > 0 {
			t.Errorf("while upstream is away: %v, %v after %s", same, err, time.Since(began))
		}
		n.locked(func() { n.mu.down = nil })
		time.Sleep(time.Minute)
		tried := n.tried.Load()
		for range 120 {
			if _, err := feeds.Open(t.Context(), configmaps, inNamespace, object.JSON, 0); err != nil {
				t.Fatal(err)
			}
			time.Sleep(time.Second)
		}
		if tries := n.tried.Load() - tried; tries < 2 || tries > 5 {
			t.Errorf("%d tries of the whole in two minutes", tries)
		}
		n.wide.Store(0)
		for range 60 {
			time.Sleep(time.Second)
			if f, err = feeds.Open(t.Context(), configmaps, inNamespace, object.JSON, 0); err != nil {
				t.Fatal(err)
			}
		}
		if !f.Scope.Whole() {
			t.Errorf("after upstream has allowed the whole: %s", f)
		}
	})
}

// Clients cannot start more than NarrowFeedsMax feeds by naming objects, nor many at a time, and their
// refusals displace no others.
func TestNarrowFeedsAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNarrow()
		n.narrow.Store(http.StatusForbidden)
		feeds := start(t, n)
		feeds.refuseLocked(feed.Key{GVR: configmaps, Encoding: object.Protobuf}, ErrNoMemory, time.Hour)
		for range 3000 {
			w := object.Want{Namespace: "ns", Name: fmt.Sprint("forbidden", n.tried.Load())}
			if _, err := feeds.Open(t.Context(), configmaps, w, object.JSON, 0); err == nil {
				t.Fatal("a feed of a forbidden object")
			}
		}
		if tried := n.tried.Load(); tried > 3*narrowBurst {
			t.Errorf("%d requests for 3,000 forbidden objects", tried)
		}
		if err := feeds.refusedLocked(feed.Key{GVR: configmaps, Encoding: object.Protobuf}); !errors.Is(err, ErrNoMemory) {
			t.Errorf("the other refusal is %v", err)
		}
		time.Sleep(time.Minute)
		tried := n.tried.Load()
		long := object.Want{Namespace: "ns", Name: "c" + strings.Repeat("x", nameMost)} // refusals keep no such names
		if _, err := feeds.Open(t.Context(), configmaps, long, object.JSON, 0); err == nil {
			t.Error("a feed of a long name")
		}
		if got := n.tried.Load() - tried; got != 2 {
			t.Errorf("%d wider scopes were tried", got)
		}
		for i := range NarrowFeedsMax + 10 {
			time.Sleep(time.Second)
			w := object.Want{Namespace: "ns", Name: fmt.Sprint("c", i)}
			f, err := feeds.Open(t.Context(), configmaps, w, object.JSON, 0)
			switch {
			case i < NarrowFeedsMax && err != nil:
				t.Fatal(err)
			case i < NarrowFeedsMax && f.Scope != object.ScopeOfName(w.Namespace, w.Name):
				t.Fatal(f)
			case i >= NarrowFeedsMax && !errors.Is(err, errManyScopes):
				t.Fatalf("feed %d: %v", i, err)
			}
		}
	})
}

// Requests beyond all configured scopes have no feed.
func TestConfiguredScope(t *testing.T) {
	node := object.Scope{Fields: "spec.nodeName=n1"}
	scoped := func(o *feed.Options) {
		o.Scopes = map[schema.GroupResource][]object.Scope{configmaps.GroupResource(): {node}}
	}
	w := object.Want{Namespace: "ns", Fields: fields.ParseSelectorOrDie("metadata.name=x,spec.nodeName=n1")}
	synctest.Test(t, func(t *testing.T) {
		n := newFake()
		n.set("a", "1")
		feeds := start(t, n, scoped)
		if _, err := feeds.Open(t.Context(), configmaps, inNamespace, object.JSON, 0); !errors.Is(err, ErrOutOfScope) || feeds.Caches(configmaps, inNamespace) {
			t.Errorf("beyond: %v", err)
		}
		if f, err := feeds.Open(t.Context(), configmaps, w, object.JSON, 0); err != nil || f.Scope != node {
			t.Fatalf("%v, %v", f, err)
		}
		if all := feeds.Status(); len(all) != 1 || all[0].Scope != node || !all[0].Ready {
			t.Errorf("%+v", all)
		}
		// Without scopes, nothing would read this cache.
		feeds.SetOptions(feed.Options{Limits: feeds.Options.Load().Limits})
		time.Sleep(time.Minute)
		if all := feeds.Status(); len(all) != 0 {
			t.Errorf("after another configuration: %+v", all)
		}
	})
}

// The cache answers readers, who have the proxy's rights or rights of their own, until upstream refuses the
// feed's next watch, when the proxy has lost its rights. Then they are forwarded, until upstream allows it
// again. If upstream allows one namespace only, the cache of that namespace answers.
func TestLostRights(t *testing.T) {
	for _, status := range []int64{http.StatusForbidden, http.StatusUnauthorized} {
		synctest.Test(t, func(t *testing.T) {
			n := &narrowUpstream{fakeUpstream: newFake()}
			n.set("a", "1")
			feeds := start(t, n)
			read := func(reviewed bool) (*fresh.Feed, error) {
				return feeds.Open(t.Context(), configmaps, object.Want{Namespace: "ns", Reviewed: reviewed}, object.JSON, 0)
			}
			first, err := read(false)
			if err != nil {
				t.Fatal(err)
			}
			n.wide.Store(status)
			n.narrow.Store(status)
			time.Sleep(time.Minute)
			n.set("a", "2")
			if same, err := read(false); same != first || err != nil {
				t.Errorf("while the watch is open: %v, %v", same, err)
			}
			n.cutStreams(false)
			time.Sleep(time.Second)
			for range 60 {
				for _, reviewed := range []bool{false, true} {
					if f, err := read(reviewed); err == nil {
						t.Errorf("refused with %d: %v", status, f)
					}
				}
				time.Sleep(time.Second)
			}
			n.narrow.Store(0)
			time.Sleep(time.Minute)
			if f, err := read(false); status == http.StatusForbidden && (err != nil || f.Scope != (object.Scope{Namespace: "ns"})) {
				t.Errorf("given back in part: %v, %v", f, err)
			}
			n.wide.Store(0)
			time.Sleep(time.Minute)
			_, _ = read(false) // tries the whole
			time.Sleep(time.Second)
			if f, err := read(false); err != nil || !f.Scope.Whole() {
				t.Errorf("given back: %v, %v", f, err)
			}
		})
	}
}
