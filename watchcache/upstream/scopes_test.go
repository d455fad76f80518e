package upstream

import (
	"errors"
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

// RoundTrip implements http.RoundTripper.
func (n *narrowUpstream) RoundTrip(req *http.Request) (*http.Response, error) {
	before, _, ok := strings.Cut(req.URL.Path, "/configmaps")
	status := &n.wide
	if strings.HasSuffix(before, "/namespaces/ns") {
		status = &n.narrow
	}
	if code := int(status.Load()); ok && code != 0 {
		n.tried.Add(1)
		return statusReply(code), nil
	}
	return n.fakeUpstream.RoundTrip(req)
}

var inNamespace = object.Want{Namespace: "ns"}

func ownNamespace(o *feed.Options) { o.OwnNamespace = "ns" }

// If upstream forbids the whole resource, the cache of the pod's namespace answers. It also answers while
// upstream is away. Once upstream allows the whole resource, the cache of the whole answers.
func TestNarrowFeed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNarrow()
		n.set("a", "1")
		feeds := start(t, n, ownNamespace)
		f, err := feeds.Open(t.Context(), configmaps, inNamespace, object.JSON, 0)
		if err != nil || f.Feed.Scope != (object.Scope{Namespace: "ns"}) || f.Cache().Stats().Objects != 1 {
			t.Fatalf("%v, %v", f, err)
		}
		for _, w := range []object.Want{{}, {Namespace: "other"}, {Fields: fields.ParseSelectorOrDie("metadata.namespace=ns")}} {
			_, err := feeds.Open(t.Context(), configmaps, w, object.JSON, 0)
			synctest.Wait() // until the refusal is recorded
			if !tooWide(err) || feeds.Caches(configmaps, w) {
				t.Errorf("%+v: %v, cached: %t", w, err, feeds.Caches(configmaps, w))
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
		if !f.Feed.Scope.Whole() {
			t.Errorf("after upstream has allowed the whole: %s", f.Feed)
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
		if f, err := feeds.Open(t.Context(), configmaps, w, object.JSON, 0); err != nil || f.Feed.Scope != node {
			t.Fatalf("%v, %v", f, err)
		}
		if all := feeds.Status(); len(all) != 1 || all[0].Scope != node || !all[0].Ready {
			t.Errorf("%+v", all)
		}
		// Without scopes, nothing would read this cache.
		feeds.SetOptions(feed.Options{Limits: feeds.shared.Options.Load().Limits})
		time.Sleep(time.Minute)
		if all := feeds.Status(); len(all) != 0 {
			t.Errorf("after another configuration: %+v", all)
		}
	})
}

// The cache answers readers until upstream refuses the feed's next watch, when the proxy has lost its
// rights. Then they are forwarded, until upstream allows it again. If upstream allows the pod's namespace
// only, the cache of that namespace answers.
func TestLostRights(t *testing.T) {
	for _, status := range []int64{http.StatusForbidden, http.StatusUnauthorized} {
		synctest.Test(t, func(t *testing.T) {
			n := &narrowUpstream{fakeUpstream: newFake()}
			n.set("a", "1")
			feeds := start(t, n, ownNamespace)
			read := func() (*fresh.Feed, error) {
				return feeds.Open(t.Context(), configmaps, inNamespace, object.JSON, 0)
			}
			first, err := read()
			if err != nil {
				t.Fatal(err)
			}
			n.wide.Store(status)
			n.narrow.Store(status)
			time.Sleep(time.Minute)
			n.set("a", "2")
			if same, err := read(); same != first || err != nil {
				t.Errorf("while the watch is open: %v, %v", same, err)
			}
			n.cutStreams(false)
			time.Sleep(time.Second)
			for range 60 {
				if f, err := read(); err == nil {
					t.Errorf("refused with %d: %v", status, f)
				}
				time.Sleep(time.Second)
			}
			n.narrow.Store(0)
			time.Sleep(time.Minute)
			if f, err := read(); status == http.StatusForbidden && (err != nil || f.Feed.Scope != (object.Scope{Namespace: "ns"})) {
				t.Errorf("given back in part: %v, %v", f, err)
			}
			n.wide.Store(0)
			time.Sleep(time.Minute)
			_, _ = read() // tries the whole
			time.Sleep(time.Second)
			if f, err := read(); err != nil || !f.Feed.Scope.Whole() {
				t.Errorf("given back: %v, %v", f, err)
			}
		})
	}
}
