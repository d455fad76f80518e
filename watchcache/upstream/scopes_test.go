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
)

// narrowUpstream refuses collections in all namespaces until wide is true.
type narrowUpstream struct {
	*fakeUpstream
	wide  atomic.Bool
	names bool // refuses all requests except those for single objects
	tried atomic.Int64
}

// RoundTrip implements http.RoundTripper.
func (n *narrowUpstream) RoundTrip(req *http.Request) (*http.Response, error) {
	path, name := req.URL.Path, strings.HasPrefix(req.URL.Query().Get("fieldSelector"), "metadata.name=c")
	narrow := strings.Contains(path, "/namespaces/ns/") && !n.names || name
	if strings.HasSuffix(path, "/configmaps") && !narrow && !n.wide.Load() {
		n.tried.Add(1)
		return statusReply(http.StatusForbidden), nil
	}
	return n.fakeUpstream.RoundTrip(req)
}

var inNamespace = object.Want{Namespace: "ns"}

// If upstream forbids the whole resource, the cache of a namespace answers. It also answers while
// upstream is away. Once upstream allows the whole resource, the cache of the whole answers.
func TestNarrowFeed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := &narrowUpstream{fakeUpstream: newFake()}
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
		n.wide.Store(true)
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
		n := &narrowUpstream{fakeUpstream: newFake(), names: true}
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

// The names of scopes are short, because refusals keep them.
func TestLongNamesAreNoScopes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		feeds := start(t, newFake())
		long := strings.Repeat("x", nameMost+1)
		for name, test := range map[string]struct {
			object.Want
			scopes int
		}{
			"short":          {object.Want{Namespace: long[1:], Name: long[1:]}, 3},
			"long namespace": {object.Want{Namespace: long, Name: "x"}, 1},
			"long name":      {object.Want{Namespace: "ns", Name: long}, 2},
		} {
			if scopes, _ := feeds.candidates(configmaps, test.Want); len(scopes) != test.scopes {
				t.Errorf("%s: %d scopes, want %d", name, len(scopes), test.scopes)
			}
		}
	})
}
