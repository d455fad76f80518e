package upstream

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/watchproxy/watchproxy/watchcache"
	"github.com/watchproxy/watchproxy/watchcache/object"
	"github.com/watchproxy/watchproxy/watchcache/upstream/discovery"
	"github.com/watchproxy/watchproxy/watchcache/upstream/feed"
)

// apiServices serves widgets of example.com, and one APIService, whose service changes. Watches of the
// widgets stay open then.
type apiServices struct {
	*fakeUpstream // its lock guards the fields below
	widgets       roundTrip
	stale         string // what a get returns instead, as from a server that lags behind
	refuse        int    // the status of lists and watches
	lists         int
	service       string // "-" if there is none
}

// local is the service of APIs that the apiserver serves itself.
const local = string(discovery.Local)

func newAPIServices(service string) *apiServices {
	absent := func(*http.Request) (*http.Response, error) {
		return reply(404, `{"kind":"Status","reason":"NotFound","code":404}`), nil
	}
	return &apiServices{fakeUpstream: newFake(), widgets: widgetUpstream(absent), service: service}
}

func (a *apiServices) json(service string) string {
	spec := `{}`
	if service != local {
		spec = fmt.Sprintf(`{"service":{"namespace":"ns","name":%q}}`, service)
	}
	return `{"kind":"APIService","metadata":{"name":"v1.example.com"},"spec":` + spec + `}`
}

func (a *apiServices) become(service string) { a.locked(func() { a.service = service }) }

// RoundTrip implements http.RoundTripper.
func (a *apiServices) RoundTrip(req *http.Request) (*http.Response, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	path := req.URL.Path
	switch {
	case path == "/apis":
		return reply(200, `{"groups":[{"name":"example.com","versions":[{"version":"v1"}]},{"name":"apiregistration.k8s.io","versions":[{"version":"v1"}]}]}`), nil
	case !strings.Contains(path, "/apiservices"):
		return a.widgets(req)
	case strings.HasSuffix(path, "/v1.example.com"):
		return reply(200, a.json(cmp.Or(a.stale, a.service))), nil
	case a.refuse != 0:
		return statusReply(a.refuse), nil
	case req.URL.Query().Get("watch") == "":
		a.lists++
		return reply(200, `{"metadata":{"resourceVersion":"5"},"items":[`+a.json(a.service)+`]}`), nil
	}
	seen := a.service
	return a.streamLocked(req.Context(), 0, 5*time.Minute, nil, func() []string {
		kind := map[bool]string{true: "DELETED", false: "MODIFIED"}[a.service == "-"]
		if seen == a.service {
			return nil
		}
		seen = a.service
		return []string{fmt.Sprintf(`{"type":%q,"object":%s}`+"\n", kind, a.json(seen))}
	}), nil
}

// When an API moves to another server, its cache ends, since upstream's own watch does not end.
func TestAPIMoves(t *testing.T) {
	for name, tc := range map[string]struct {
		from, to   string
		aggregated bool // cached although another server serves it
		ends, not  bool // the cache ends; the API is not cached any more
	}{
		"to an aggregated server":         {from: local, to: "other", ends: true, not: true},
		"from one server to another":      {from: "one", to: "other", aggregated: true, ends: true},
		"back from an aggregated server":  {from: "one", to: local, aggregated: true, ends: true},
		"a welcome aggregated server":     {from: local, to: "other", aggregated: true, ends: true},
		"the aggregated API is gone":      {from: "one", to: "-", aggregated: true, ends: true},
		"nothing of importance":           {from: local, to: local},
		"nothing of importance elsewhere": {from: "one", to: "one", aggregated: true},
		"the definition's API is gone":    {from: local, to: "-"}, // its definition tells more
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				a := newAPIServices(tc.from)
				feeds := start(t, a, func(o *feed.Options) {
					o.Resources = map[schema.GroupResource]feed.ResourceOptions{widgets.GroupResource(): {Aggregated: tc.aggregated}}
				})
				before := openOf(t, feeds, widgets)
				time.Sleep(time.Minute)
				if now := openOf(t, feeds, widgets); now != before {
					t.Fatal("the cache has ended before")
				}
				a.become(tc.to)
				synctest.Wait()
				_, err := before.Cache().Snapshot()
				if ended := err != nil; ended != tc.ends {
					t.Errorf("the cache has ended: %t, %v", ended, err)
				}
				time.Sleep(2 * changeDelay)
				ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
				defer cancel()
				now, err := feeds.Open(ctx, widgets, object.Want{}, object.JSON, 0)
				if refused := errors.Is(err, discovery.ErrNotCacheable); refused != tc.not || err != nil && !refused || now == before && tc.ends {
					t.Errorf("after the move: %v", err)
				}
			})
		})
	}
}

// A watch of the APIServices that is silent and has no end is not trusted for long.
func TestAPIMovesInSilence(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newAPIServices(local)
		feeds := start(t, roundTrip(func(req *http.Request) (*http.Response, error) {
			if strings.HasSuffix(req.URL.Path, "/apiservices") && req.URL.Query().Has("watch") {
				resp, _ := piped(req)
				return resp, nil
			}
			return a.RoundTrip(req)
		}))
		f := openOf(t, feeds, widgets)
		time.Sleep(time.Minute)
		a.become("other")
		time.Sleep(6 * time.Minute)
		if _, err := f.Cache().Snapshot(); !errors.Is(err, watchcache.ErrEnded) || a.lists < 2 {
			t.Errorf("after %d lists of the APIServices, the cache has not ended: %v", a.lists, err)
		}
	})
}

// A feed does not start if its definition or its APIService is known to have changed, even if it was read
// from a server that lags behind.
func TestServedInAnotherWayAlready(t *testing.T) {
	for name, upstream := range map[string]func() http.RoundTripper{
		"an APIService": func() http.RoundTripper {
			moved := newAPIServices("other")
			moved.stale = local
			return moved
		},
		"a definition": func() http.RoundTripper {
			return widgetUpstream(func(req *http.Request) (*http.Response, error) {
				if strings.HasSuffix(req.URL.Path, "/widgets.example.com") {
					return reply(200, `{"metadata":{"name":"widgets.example.com","uid":"one","generation":1}}`), nil
				}
				return reply(200, `{"metadata":{"resourceVersion":"5"},"items":[{"metadata":{"name":"widgets.example.com","uid":"one","generation":2}}]}`), nil
			})
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				feeds := start(t, upstream())
				_, _ = feeds.Open(t.Context(), widgets, object.Want{}, object.JSON, 0)
				time.Sleep(time.Minute) // meanwhile the others are read
				for range 20 {
					time.Sleep(2 * changeDelay)
					if _, err := feeds.Open(t.Context(), widgets, object.Want{}, object.JSON, 0); !errors.Is(err, watchcache.ErrNotReady) {
						t.Errorf("got %v", err)
					}
				}
			})
		})
	}
}

// If upstream forbids to follow the APIServices, the log says so once, and the proxy does not rely on what it
// knew of them. It follows them once it may.
func TestAPIServicesRefused(t *testing.T) {
	for status, times := range map[int]int{http.StatusForbidden: 1, http.StatusNotFound: 0} {
		t.Run(fmt.Sprint(status), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				a := newAPIServices(local)
				core, logs := observer.New(zap.WarnLevel)
				feeds := newFeeds(t, a, prometheus.NewRegistry(), feed.Options{}, zap.New(core))
				defer feeds.Stop()
				openOf(t, feeds, widgets)
				synctest.Wait()
				a.become("other")
				synctest.Wait()
				a.locked(func() { a.refuse = status })
				time.Sleep(10 * time.Minute) // the watch ends, and the list is refused
				if n := logs.FilterMessage("following apiservices broke").Len(); n != times {
					t.Errorf("said %d times", n)
				}
				a.become(local)
				time.Sleep(time.Hour)
				f := openOf(t, feeds, widgets)
				a.locked(func() { a.refuse = 0 })
				time.Sleep(2 * time.Minute)
				a.become("other")
				synctest.Wait()
				if _, err := f.Cache().Snapshot(); !errors.Is(err, watchcache.ErrEnded) {
					t.Errorf("the cache has not ended: %v", err)
				}
			})
		})
	}
}
