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
	widgets roundTrip
	stale   string // what a get returns instead, as from a server that lags behind
	refuse  int    // the status of lists and watches

	mu      sync.Mutex
	lists   int
	service string // "-" if there is none
	changed chan struct{}
}

func newAPIServices(service string) *apiServices {
	absent := func(*http.Request) (*http.Response, error) {
		return reply(404, `{"kind":"Status","reason":"NotFound","code":404}`), nil
	}
	return &apiServices{widgets: widgetUpstream(absent), service: service, changed: make(chan struct{})}
}

func (a *apiServices) json(service string) string {
	spec := `{}`
	if service != discovery.Local {
		spec = fmt.Sprintf(`{"service":{"namespace":"ns","name":%q}}`, service)
	}
	return `{"kind":"APIService","metadata":{"name":"v1.example.com"},"spec":` + spec + `}`
}

func (a *apiServices) become(service string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.service = service
	close(a.changed)
	a.changed = make(chan struct{})
}

func (a *apiServices) setRefuse(status int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.refuse = status
}

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
	case strings.HasSuffix(path, "/v1.example.com") && a.stale != "":
		return reply(200, a.json(a.stale)), nil
	case strings.HasSuffix(path, "/v1.example.com"):
		return reply(200, a.json(a.service)), nil
	case a.refuse != 0:
		return reply(a.refuse, fmt.Sprintf(`{"kind":"Status","status":"Failure","reason":%q,"code":%d}`, http.StatusText(a.refuse), a.refuse)), nil
	case req.URL.Query().Get("watch") == "":
		a.lists++
		return reply(200, `{"metadata":{"resourceVersion":"5"},"items":[`+a.json(a.service)+`]}`), nil
	}
	return a.watch(req), nil
}

// watch sends the APIService whenever it changes.
func (a *apiServices) watch(req *http.Request) *http.Response {
	resp, w := piped(req)
	changed := a.changed
	go func() {
		defer w.Close()
		over := time.After(5 * time.Minute)
		for {
			select {
			case <-req.Context().Done():
				return
			case <-over:
				return
			case <-changed:
			}
			a.mu.Lock()
			kind, object := "MODIFIED", a.json(a.service)
			if a.service == "-" {
				kind = "DELETED"
			}
			changed = a.changed
			a.mu.Unlock()
			if _, err := fmt.Fprintf(w, `{"type":%q,"object":%s}`+"\n", kind, object); err != nil {
				return
			}
		}
	}()
	return resp
}

// When an API moves to another server, its cache ends, since upstream's own watch does not end.
func TestAPIMoves(t *testing.T) {
	for name, tc := range map[string]struct {
		from, to   string
		aggregated bool // cached although another server serves it
		ends, not  bool // the cache ends; the API is not cached any more
	}{
		"to an aggregated server":         {from: discovery.Local, to: "other", ends: true, not: true},
		"from one server to another":      {from: "one", to: "other", aggregated: true, ends: true},
		"back from an aggregated server":  {from: "one", to: discovery.Local, aggregated: true, ends: true},
		"a welcome aggregated server":     {from: discovery.Local, to: "other", aggregated: true, ends: true},
		"the aggregated API is gone":      {from: "one", to: "-", aggregated: true, ends: true},
		"nothing of importance":           {from: discovery.Local, to: discovery.Local},
		"nothing of importance elsewhere": {from: "one", to: "one", aggregated: true},
		"the definition's API is gone":    {from: discovery.Local, to: "-"}, // its definition tells more
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
				time.Sleep(2 * settling)
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

// A feed ends as soon as the APIService is known to have moved, even if it was read from a server
// that lags behind.
func TestAPIHasMoved(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newAPIServices("other")
		a.stale = discovery.Local
		feeds := start(t, a)
		_, _ = feeds.Open(t.Context(), widgets, object.Want{}, object.JSON, 0)
		time.Sleep(time.Minute) // meanwhile the APIServices are read
		for range 20 {
			time.Sleep(2 * settling)
			if _, err := feeds.Open(t.Context(), widgets, object.Want{}, object.JSON, 0); !errors.Is(err, watchcache.ErrNotReady) {
				t.Errorf("got %v", err)
			}
		}
	})
}

// If the APIServices cannot be followed any more, the proxy does not rely on what it knew of them.
func TestAPIReturnsUnseen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newAPIServices(discovery.Local)
		feeds := start(t, a)
		openOf(t, feeds, widgets)
		synctest.Wait()
		a.become("other")
		synctest.Wait()
		a.setRefuse(http.StatusForbidden)
		time.Sleep(10 * time.Minute) // the watch ends, and the list is refused
		a.become(discovery.Local)
		time.Sleep(time.Hour)
		openOf(t, feeds, widgets)
	})
}

// A watch of the APIServices that is silent and has no end is not trusted for long.
func TestAPIMovesInSilence(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newAPIServices(discovery.Local)
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

// If upstream forbids to follow the APIServices, the log says so once.
func TestAPIServicesRefused(t *testing.T) {
	for status, times := range map[int]int{http.StatusForbidden: 1, http.StatusNotFound: 0} {
		t.Run(fmt.Sprint(status), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				a := newAPIServices(discovery.Local)
				a.refuse = status
				core, logs := observer.New(zap.WarnLevel)
				feeds := newFeeds(t, a, prometheus.NewRegistry(), feed.Options{}, zap.New(core))
				defer feeds.Stop()
				f := openOf(t, feeds, widgets)
				time.Sleep(10 * time.Minute)
				if n := logs.FilterMessage("following apiservices broke").Len(); n != times {
					t.Errorf("said %d times", n)
				}
				a.setRefuse(0)
				time.Sleep(2 * time.Minute)
				if a.become("other"); a.lists == 0 {
					t.Error("not followed once it is allowed")
				}
				synctest.Wait()
				if _, err := f.Cache().Snapshot(); !errors.Is(err, watchcache.ErrEnded) {
					t.Errorf("the cache has not ended: %v", err)
				}
			})
		})
	}
}
