package listen

import (
	"bufio"
	"context"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/watchproxy/watchproxy/proxy/exchange"
	"github.com/watchproxy/watchproxy/proxy/fair"
	"github.com/watchproxy/watchproxy/proxy/h2"
	"github.com/watchproxy/watchproxy/proxy/metrics"
	"github.com/watchproxy/watchproxy/proxy/watch"
	"github.com/watchproxy/watchproxy/watchcache"
	"github.com/watchproxy/watchproxy/watchcache/cachetest"
	"github.com/watchproxy/watchproxy/watchcache/filter"
)

// watches answers each request with a watch that has an expensive filter.
type watches struct {
	t     *testing.T
	cache *watchcache.Cache
}

// Handle implements Handler.
func (w watches) Handle(context.Context, *exchange.Request, *exchange.Route) *exchange.Response {
	p := watchOf(w.t, w.cache)
	selector, err := labels.Parse(strings.TrimSuffix(strings.Repeat("!k,", 40), ","))
	if err != nil {
		w.t.Error(err)
	}
	if p.Filter, err = filter.New(w.cache.Resource(), "a", selector, nil); err != nil {
		w.t.Error(err)
	}
	resp := exchange.NewResponse(http.StatusOK, exchange.FromCache)
	resp.Stream = watch.New(p)
	return resp
}

// Answered implements Handler.
func (watches) Answered(*exchange.Request, exchange.Route, *exchange.Response, time.Duration) (written func(int64)) {
	return func(int64) {}
}

// A watch with an expensive filter receives its events even while the pump is blocked.
func TestExpensiveFilterIsNotThePumps(t *testing.T) {
	c, _ := cachetest.Roomy(t)
	serving, cut := context.WithCancel(context.WithoutCancel(t.Context()))
	draining, drain := context.WithCancel(serving)
	s := New(Config{
		Handler: watches{t, c}, Options: func() Options {
			return Options{Options: h2.Options{Limits: exchange.Limits{HeaderBytes: 64 << 10, Read: time.Minute, Write: time.Minute, Idle: time.Minute, Connections: 10}, Stall: time.Minute}}
		},
		Slots: fair.NewSlots(1 << 20), Metrics: metrics.New(prometheus.NewRegistry()), Log: zap.NewNop(),
		Serving: serving, Cut: cut, Draining: draining, Drain: drain,
	})
	s.pump.Most = -1 // the pump starts no goroutines
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, end := context.WithCancel(t.Context())
	served := make(chan error)
	go func() { served <- s.Serve(ctx, l) }()
	resp, err := http.Get("http://" + l.Addr().String() + "/watch")
	if err != nil {
		t.Fatal(err)
	}
	applied := make(chan struct{})
	go func() {
		defer close(applied)
		cachetest.Apply(t, c, cachetest.Sized(t, 2, 10))
	}()
	line := make(chan string, 1)
	go func() {
		text, _ := bufio.NewReader(resp.Body).ReadString('\n') // empty without an event
		line <- text
	}()
	select {
	case text := <-line:
		if !strings.Contains(text, `"resourceVersion":"2"`) {
			t.Errorf("it got %q", text)
		}
	case <-time.After(30 * time.Second):
		t.Error("it waits for the pump")
	}
	<-applied
	_ = resp.Body.Close()
	http.DefaultClient.CloseIdleConnections()
	end()
	if err := <-served; err != nil {
		t.Error(err)
	}
}
