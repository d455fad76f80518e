package upstream

import (
	"errors"
	"fmt"
	"net/http"
	"path"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/watchproxy/watchproxy/watchcache/object"
	"github.com/watchproxy/watchproxy/watchcache/upstream/client"
	"github.com/watchproxy/watchproxy/watchcache/upstream/feed"
	"github.com/watchproxy/watchproxy/watchcache/upstream/fresh"
)

// ledgerFeed returns the feed of a large collection whose readers have started the ledger.
func ledgerFeed(t *testing.T, f *fakeUpstream, change ...func(*feed.Options)) *fresh.Feed {
	t.Helper()
	fill(f, feed.SmallObjects+1)
	source := openFeed(t, f, append(change, withLedger)...)
	startLedger(t, f, source)
	return source
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
		f := newFake()
		f.mu.more = listsResource("widgets")
		fill(f, feed.SmallObjects+1)
		var life atomic.Int64
		life.Store(int64(500 * time.Millisecond))
		f.answers(func(req *http.Request) (*http.Response, error) {
			if isLedgerWatch(req) && path.Base(req.URL.Path) == "widgets" {
				return breaksAfter(req, time.Duration(life.Load())), nil
			}
			return nil, nil
		})
		source := openFrom(t, start(t, f, withLedger))
		covered := 0
		for i := range 1200 { // ten minutes
			f.other("leases")
			if i%4 == 0 || i < 100 {
				readFresh(t, f, source)
			}
			if source.Keeper.Ledger.Has(source.Feed.Owner) {
				covered++
			}
			time.Sleep(500 * time.Millisecond)
		}
		if covered < 1000 {
			t.Errorf("the ledger covers the resource at %d of 1,200 moments", covered)
		}
		const watch = "ledger /api/v1/widgets"
		if n := f.count(watch); n < 8 || n > 20 {
			t.Errorf("%d watches in ten minutes", n)
		}
		const long = 2 * fresh.Needed
		life.Store(int64(long))
		for before := f.count(watch); f.count(watch) < before+2; time.Sleep(time.Second) {
			f.other("leases")
			readFresh(t, f, source)
		}
		before := f.count(watch)
		for ended := time.Now(); time.Since(ended) < long+15*time.Second; time.Sleep(time.Second) {
			f.other("leases")
			readFresh(t, f, source)
		}
		if n := f.count(watch) - before; n != 1 {
			t.Errorf("%d more watches within 15 s after the end of a long one, want 1", n)
		}
	})
}

// If upstream refuses to list and watch many resources, they are asked for seldom, and the others still
// get their evidence.
func TestRefusedResources(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		for i := range 20 {
			f.mu.more += listsResource(fmt.Sprintf("a-refused%d", i))
		}
		var requests atomic.Int64
		f.answers(func(req *http.Request) (*http.Response, error) {
			if !strings.HasPrefix(path.Base(req.URL.Path), "a-refused") {
				return nil, nil
			}
			requests.Add(1)
			return reply(403, `{"kind":"Status","status":"Failure","reason":"Forbidden","code":403}`), nil
		})
		source := ledgerFeed(t, f)
		readFor(t, f, source, 9*time.Minute)
		for _, resource := range []string{"configmaps", "events", "leases"} {
			if o := ownerOf(schema.GroupResource{Resource: resource}); !source.Keeper.Ledger.Has(o) {
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
		f := newFake()
		f.mu.more = listsResource("narrow")
		ledgerFeed(t, f, func(o *feed.Options) {
			o.Excluded = []schema.GroupResource{{Resource: "leases"}}
			o.Scopes = map[schema.GroupResource][]object.Scope{{Resource: "narrow"}: {{Namespace: "ns"}}}
		})
		time.Sleep(10 * time.Second)
		for resource, want := range map[string]int{"leases": 0, "narrow": 0, "configmaps": 0, "namespaces": 1} {
			if n := f.count("ledger /api/v1/" + resource); n != want {
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

// Without writes there is no new evidence, and only the reference is probed.
func TestNoProbesWithoutWrites(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, source := filledFeed(t, feed.SmallObjects+1, withLedger)
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

// The ledger follows a resource to another version of its group. It does not follow it to an aggregated API,
// which may show other resources' objects.
func TestResourceIsServedInAnotherWay(t *testing.T) {
	for name, c := range map[string]struct {
		now  widgetGroup
		want map[string]int // watches of the versions
	}{
		"another version":   {widgetGroup{version: "v2"}, map[string]int{"v1": 1, "v2": 1}},
		"an aggregated API": {widgetGroup{version: "v1", aggregated: true}, map[string]int{"v1": 1, "v2": 0}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFake()
				f.answers((&widgetGroup{f, "v1", false}).answer)
				source := ledgerFeed(t, f)
				time.Sleep(2 * fresh.Every)
				c.now.fakeUpstream = f
				f.answers(c.now.answer)
				f.cutStreams(false)
				readFor(t, f, source, 3*time.Minute)
				for version, want := range c.want {
					if n := f.count("ledger /apis/example.com/" + version + "/widgets"); n != want {
						t.Errorf("%d watches of %s, want %d", n, version, want)
					}
				}
			})
		})
	}
}
