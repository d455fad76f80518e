package upstream

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/watchproxy/watchproxy/watchcache"
	"github.com/watchproxy/watchproxy/watchcache/object"
	"github.com/watchproxy/watchproxy/watchcache/upstream/discovery"
	"github.com/watchproxy/watchproxy/watchcache/upstream/feed"
)

// slowDiscovery has three groups and versions without resources. It responds slowly and counts
// requests.
type slowDiscovery struct {
	takes    time.Duration
	mu       sync.Mutex
	fails    bool
	now      map[string]int // requests in flight, by path
	asked    map[string]int
	most     int // maximum number of requests in flight
	mostSame int // the same for a single path
}

func (s *slowDiscovery) RoundTrip(req *http.Request) (*http.Response, error) {
	path := req.URL.Path
	s.mu.Lock()
	s.now[path]++
	s.asked[path]++
	all := 0
	for _, n := range s.now {
		all += n
	}
	s.most, s.mostSame = max(s.most, all), max(s.mostSame, s.now[path])
	fails := s.fails
	s.mu.Unlock()
	time.Sleep(s.takes)
	s.mu.Lock()
	s.now[path]--
	s.mu.Unlock()
	switch {
	case fails:
		return reply(500, "broken"), nil
	case path == "/apis":
		return reply(200, `{"kind":"APIGroupList","groups":[{"name":"apps","versions":[{"version":"v1"}]},{"name":"example.com","versions":[{"version":"v1"}]}]}`), nil
	case path == "/api/v1", path == "/apis/apps/v1", path == "/apis/example.com/v1":
		return reply(200, `{"kind":"APIResourceList","resources":[]}`), nil
	}
	return reply(404, "404 page not found"), nil
}

func newSlowDiscovery() *slowDiscovery {
	return &slowDiscovery{takes: 50 * time.Millisecond, now: map[string]int{}, asked: map[string]int{}}
}

// Clients can invent any number of names. Upstream gets at most one request for a document at a
// time, and at most one per AskedAgain. The proxy keeps no metric and logs nothing under these names.
func TestMadeUpNames(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		upstream := newSlowDiscovery()
		registry := prometheus.NewRegistry()
		core, logs := observer.New(zap.DebugLevel)
		feeds := newFeeds(t, upstream, registry, feed.Options{}, zap.New(core))
		defer feeds.Stop()
		const each, rounds = 100, 4
		long := strings.Repeat("a", 16<<10)
		for range rounds {
			var all sync.WaitGroup
			for i := range each {
				n := fmt.Sprint(i)
				for _, gvr := range []schema.GroupVersionResource{
					gvrOf("", "v1", n), gvrOf("apps", "v1", n), gvrOf("example.com", "v1", n), gvrOf("apps", "v"+n, "deployments"),
					gvrOf("", "v2"+n, "pods"), gvrOf("g"+n, "v1", "pods"), gvrOf("", "v1", long+n), gvrOf(long+n, "v1", "pods"),
					gvrOf("", "v1", "Pods "+n), gvrOf("a\n"+n, "v1", "pods"),
				} {
					all.Go(func() {
						if _, err := feeds.Open(t.Context(), gvr, object.Want{}, object.JSON, 0); !errors.Is(err, discovery.ErrNotServed) {
							t.Errorf("%.100s: %v", gvr, err)
						}
						if feeds.Caches(gvr, object.Want{}) {
							t.Errorf("%.100s: a feed is possible", gvr)
						}
					})
				}
			}
			all.Wait()
			time.Sleep(discovery.AskedAgain + 1)
		}
		upstream.mu.Lock()
		defer upstream.mu.Unlock()
		delete(upstream.asked, "/readyz") // the health check at the start
		for path, n := range upstream.asked {
			if n > rounds+1 {
				t.Errorf("upstream was asked %d times for %s", n, path)
			}
		}
		const known = 4 // the list of groups, the core, two groups
		if len(upstream.asked) != known || upstream.mostSame != 1 || upstream.most > discovery.Max {
			t.Errorf("%d documents were asked for, %d at a time, the same %d at a time", len(upstream.asked), upstream.most, upstream.mostSame)
		}
		feeds.set.mu.Lock()
		defer feeds.set.mu.Unlock()
		if n := len(feeds.set.mu.feeds) + len(feeds.set.mu.refusals.byKey) + len(feeds.set.mu.refusals.forbidden); n != 0 || len(feeds.shared.Names.Mu.Documents) != known {
			t.Errorf("%d names are kept, %d documents", n, len(feeds.shared.Names.Mu.Documents))
		}
		if n, err := testutil.GatherAndCount(registry); err != nil || n > 100 || logs.Len() != 0 {
			t.Errorf("%d series, %d lines are logged: %v", n, logs.Len(), err)
		}
	})
}

func gvrOf(group, version, resource string) schema.GroupVersionResource {
	return schema.GroupVersionResource{Group: group, Version: version, Resource: resource}
}

// After discovery has failed, upstream gets no further request for a while, from any client. The
// log reports the failure once. Then discovery is requested again. Upstream may serve later what it lacks now.
func TestDiscoveryFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		upstream := newSlowDiscovery()
		upstream.fails = true
		core, logs := observer.New(zap.WarnLevel)
		feeds := newFeeds(t, upstream, prometheus.NewRegistry(), feed.Options{}, zap.New(core))
		defer feeds.Stop()
		const rounds, each = 5, 20
		for range rounds {
			for i := range each {
				if _, err := feeds.Open(t.Context(), gvrOf("apps", "v1", fmt.Sprint("r", i)), object.Want{}, object.JSON, 0); err == nil || errors.Is(err, discovery.ErrNotServed) {
					t.Errorf("got %v", err)
				}
			}
			time.Sleep(discovery.AskedAgain)
		}
		upstream.mu.Lock()
		delete(upstream.asked, "/readyz") // health checks do not count
		if n := upstream.asked["/apis"]; n != rounds || len(upstream.asked) != 1 || logs.Len() != 1 {
			t.Errorf("upstream was asked %v, %d lines are logged", upstream.asked, logs.Len())
		}
		upstream.fails = false
		upstream.mu.Unlock()
		gvr := gvrOf("apps", "v1", "r")
		if err := feeds.shared.Names.Serves(t.Context(), gvr); !errors.Is(err, discovery.ErrNotServed) || !feeds.shared.Names.Lacks(gvr) {
			t.Errorf("got %v", err)
		}
		time.Sleep(discovery.AskedAgain + 1)
		if feeds.shared.Names.Lacks(gvr) {
			t.Error("what upstream said long ago still counts")
		}
	})
}

// A client does not wait longer than its own deadline. The shared request continues without that
// client.
func TestDiscoveryIsShared(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		upstream := newSlowDiscovery()
		upstream.takes = time.Second
		feeds := start(t, upstream)
		ctx, cancel := context.WithTimeout(t.Context(), upstream.takes/2)
		defer cancel()
		other := make(chan error, 1)
		go func() {
			_, err := feeds.Open(t.Context(), gvrOf("", "v1", "r"), object.Want{}, object.JSON, 0)
			other <- err
		}()
		if _, err := feeds.Open(ctx, gvrOf("", "v1", "s"), object.Want{}, object.JSON, 0); !errors.Is(err, watchcache.ErrNotReady) {
			t.Errorf("got %v", err)
		}
		if err := <-other; !errors.Is(err, discovery.ErrNotServed) {
			t.Errorf("got %v", err)
		}
		if n := upstream.asked["/api/v1"]; n != 1 {
			t.Errorf("upstream was asked %d times", n)
		}
	})
}
