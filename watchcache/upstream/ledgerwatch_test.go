package upstream

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"path"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/watchproxy/watchproxy/watchcache/object"
	"github.com/watchproxy/watchproxy/watchcache/upstream/client"
	"github.com/watchproxy/watchproxy/watchcache/upstream/feed"
	"github.com/watchproxy/watchproxy/watchcache/upstream/fresh"
	"github.com/watchproxy/watchproxy/watchcache/upstream/ledger"
)

// ledgerRequests counts the ledger's watches by path. Tests can answer some requests themselves.
type ledgerRequests struct {
	*fakeUpstream
	mu struct {
		sync.Mutex
		watches map[string]int
		open    int
		answer  func(*http.Request) (*http.Response, error) // returns nil for the fake's own response
	}
}

func newLedgerRequests() *ledgerRequests {
	l := &ledgerRequests{fakeUpstream: newFake()}
	l.mu.watches = map[string]int{}
	return l
}

// feed returns the feed of a large collection whose readers have started the ledger.
func (l *ledgerRequests) feed(t *testing.T, change ...func(*feed.Options)) *fresh.Feed {
	t.Helper()
	fill(l.fakeUpstream, feed.SmallObjects+1)
	source := openFrom(t, start(t, l, append(change, withLedger)...))
	startLedger(t, l.fakeUpstream, source)
	return source
}

// answers sets a function that answers requests. It returns nil for the fake's own response.
func (l *ledgerRequests) answers(answer func(*http.Request) (*http.Response, error)) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.mu.answer = answer
}

// watches returns the number of watches of a path so far.
func (l *ledgerRequests) watches(path string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.mu.watches[path]
}

// open returns the number of open watches.
func (l *ledgerRequests) open() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.mu.open
}

// RoundTrip implements http.RoundTripper.
func (l *ledgerRequests) RoundTrip(req *http.Request) (*http.Response, error) {
	l.mu.Lock()
	answer := l.mu.answer
	if isLedgerWatch(req) {
		l.mu.watches[req.URL.Path]++
		l.mu.open++
		context.AfterFunc(req.Context(), func() {
			l.mu.Lock()
			defer l.mu.Unlock()
			l.mu.open--
		})
	}
	l.mu.Unlock()
	if answer != nil {
		if resp, err := answer(req); resp != nil || err != nil {
			return resp, err
		}
	}
	return l.fakeUpstream.RoundTrip(req)
}

func isLedgerWatch(req *http.Request) bool {
	return req.Header.Get("Accept") == fresh.AcceptMetadataEvents
}

// isProbeOf reports whether a request is a probe of a resource.
func isProbeOf(req *http.Request, resource string) bool {
	return path.Base(req.URL.Path) == resource && strings.Contains(req.URL.Path, client.NoSuchNamespace)
}

func listsResource(name string) string {
	return fmt.Sprintf(`,{"name":%q,"namespaced":true,"kind":"A","verbs":["get","list","watch"]}`, name)
}

// breaksAfter returns a watch that breaks after some time.
func breaksAfter(req *http.Request, life time.Duration) *http.Response {
	resp, w := piped(req)
	go func() {
		client.Sleep(req.Context(), life)
		w.CloseWithError(errors.New("conversion webhook failed"))
	}()
	return resp
}

// Each break of a watch makes the ledger forget all. If a watch breaks again and again, it is opened
// less and less often, and the ledger proves something most of the time. A watch that has lived is
// opened soon.
func TestWatchesThatKeepBreaking(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLedgerRequests()
		f := l.fakeUpstream
		f.mu.more = listsResource("widgets")
		fill(f, feed.SmallObjects+1)
		var life atomic.Int64
		life.Store(int64(500 * time.Millisecond))
		l.answers(func(req *http.Request) (*http.Response, error) {
			if isLedgerWatch(req) && path.Base(req.URL.Path) == "widgets" {
				return breaksAfter(req, time.Duration(life.Load())), nil
			}
			return nil, nil
		})
		source := openFrom(t, start(t, l, withLedger))
		covered := 0
		for i := range 1200 { // ten minutes
			f.other("leases")
			if i%4 == 0 || i < 100 {
				readFresh(t, f, source)
			}
			if source.Ledger.Has(source.Owner) {
				covered++
			}
			time.Sleep(500 * time.Millisecond)
		}
		if covered < 1000 {
			t.Errorf("the ledger covers the resource at %d of 1,200 moments", covered)
		}
		const watch = "/api/v1/widgets"
		if n := l.watches(watch); n < 8 || n > 20 {
			t.Errorf("%d watches in ten minutes", n)
		}
		const long = 2 * fresh.Needed
		life.Store(int64(long))
		for before := l.watches(watch); l.watches(watch) < before+2; time.Sleep(time.Second) {
			f.other("leases")
			readFresh(t, f, source)
		}
		before := l.watches(watch)
		for ended := time.Now(); time.Since(ended) < long+15*time.Second; time.Sleep(time.Second) {
			f.other("leases")
			readFresh(t, f, source)
		}
		if n := l.watches(watch) - before; n != 1 {
			t.Errorf("%d more watches within 15 s after the end of a long one, want 1", n)
		}
	})
}

// If upstream refuses to list and watch many resources, they are asked for seldom, and the others still
// get their evidence.
func TestRefusedResources(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLedgerRequests()
		f := l.fakeUpstream
		for i := range 20 {
			f.mu.more += listsResource(fmt.Sprintf("a-refused%d", i))
		}
		var requests atomic.Int64
		l.answers(func(req *http.Request) (*http.Response, error) {
			if !strings.HasPrefix(path.Base(req.URL.Path), "a-refused") {
				return nil, nil
			}
			requests.Add(1)
			return reply(403, `{"kind":"Status","status":"Failure","reason":"Forbidden","code":403}`), nil
		})
		source := l.feed(t)
		readFor(t, f, source, 9*time.Minute)
		for _, resource := range []string{"configmaps", "events", "leases"} {
			if o := ledger.OwnerOf(schema.GroupResource{Resource: resource}); !source.Ledger.Has(o) {
				t.Errorf("no evidence of %s", resource)
			}
		}
		if n := requests.Load(); n > 40 { // one each, and some for evidence
			t.Errorf("%d requests of 20 refused resources in nine minutes", n)
		}
	})
}

// The ledger watches neither excluded resources, nor those that feeds watch.
func TestResourcesThatTheLedgerDoesNotWatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLedgerRequests()
		f := l.fakeUpstream
		f.mu.more = listsResource("narrow")
		l.feed(t, func(o *feed.Options) {
			o.Excluded = []schema.GroupResource{{Resource: "leases"}}
			o.Scopes = map[schema.GroupResource][]object.Scope{{Resource: "narrow"}: {{Namespace: "ns"}}}
		})
		time.Sleep(10 * time.Second)
		for resource, want := range map[string]int{"leases": 0, "narrow": 0, "configmaps": 0, "namespaces": 1} {
			if n := l.watches("/api/v1/" + resource); n != want {
				t.Errorf("%d watches of %s, want %d", n, resource, want)
			}
		}
	})
}

// widgetGroup serves widgets in a version of a group, which an aggregated API may serve.
type widgetGroup struct {
	*fakeUpstream
	version    string
	aggregated bool
}

func (g *widgetGroup) answer(req *http.Request) (*http.Response, error) {
	switch p := req.URL.Path; {
	case p == "/apis":
		return reply(200, fmt.Sprintf(`{"kind":"APIGroupList","groups":[{"name":"apiregistration.k8s.io",`+
			`"versions":[{"version":"v1"}]},{"name":"example.com","versions":[{"version":%q}]}]}`, g.version)), nil
	case p == "/apis/example.com/"+g.version:
		return reply(200, `{"kind":"APIResourceList","resources":[`+listsResource("widgets")[1:]+`]}`), nil
	case strings.Contains(p, "/apiservices/") && g.aggregated:
		return reply(200, `{"kind":"APIService","spec":{"service":{"name":"widgets"}}}`), nil
	case strings.Contains(p, "/apiservices/"):
		return reply(200, `{"kind":"APIService","spec":{}}`), nil
	case strings.HasPrefix(p, "/apis/example.com/"+g.version) && isProbeOf(req, "widgets"):
		return reply(200, fmt.Sprintf(`{"kind":"AList","apiVersion":"example.com/%s",`+
			`"metadata":{"resourceVersion":"%d"},"items":[]}`, g.version, g.revision())), nil
	case strings.HasPrefix(p, "/apis/example.com/"+g.version) || !strings.HasPrefix(p, "/apis/"):
		return nil, nil
	}
	return reply(404, `{"kind":"Status","status":"Failure","reason":"NotFound","code":404}`), nil
}

// When watches break, a resource may have moved to an aggregated API, which may show other resources'
// objects. The ledger does not watch it again.
func TestResourceMovesToAnAggregatedAPI(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLedgerRequests()
		f := l.fakeUpstream
		l.answers((&widgetGroup{f, "v1", false}).answer)
		source := l.feed(t)
		time.Sleep(2 * fresh.Every)
		const watch = "/apis/example.com/v1/widgets"
		before := l.watches(watch)
		l.answers((&widgetGroup{f, "v1", true}).answer)
		f.cutStreams(false)
		readFor(t, f, source, 30*time.Second)
		if n := l.watches(watch) - before; before != 1 || n != 0 {
			t.Errorf("%d watches, and %d after the move", before, n)
		}
	})
}

// If upstream serves a resource by another version, the ledger watches that version.
func TestLedgerFollowsVersions(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLedgerRequests()
		f := l.fakeUpstream
		l.answers((&widgetGroup{f, "v1", false}).answer)
		source := l.feed(t)
		time.Sleep(2 * fresh.Every)
		l.answers((&widgetGroup{f, "v2", false}).answer)
		readFor(t, f, source, 3*time.Minute)
		v1, v2 := l.watches("/apis/example.com/v1/widgets"), l.watches("/apis/example.com/v2/widgets")
		if v1 != 1 || v2 != 1 {
			t.Errorf("%d watches of v1, %d of v2", v1, v2)
		}
	})
}

// Without writes there is no new evidence, and only the reference is probed.
func TestNoProbesWithoutWrites(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		fill(f, feed.SmallObjects+1)
		source := openFeed(t, f, withLedger)
		startLedger(t, f, source)
		time.Sleep(5 * time.Second)
		const rounds = 60
		before := f.count("probe")
		time.Sleep(rounds * fresh.Every)
		if n := f.count("probe") - before; n > rounds+5 { // the feed itself probes seldom
			t.Errorf("%d probes in %d rounds", n, rounds)
		}
	})
}
