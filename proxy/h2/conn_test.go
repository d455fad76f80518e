package h2

import (
	"context"
	"net"
	"net/http"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/goleak"
	"go.uber.org/zap"

	"github.com/watchproxy/watchproxy/bench/cachetest"
	"github.com/watchproxy/watchproxy/proxy/conn"
	"github.com/watchproxy/watchproxy/proxy/exchange"
	"github.com/watchproxy/watchproxy/proxy/fair"
	"github.com/watchproxy/watchproxy/proxy/metrics"
	"github.com/watchproxy/watchproxy/proxy/watch"
	"github.com/watchproxy/watchproxy/proxy/wire"
	"github.com/watchproxy/watchproxy/watchcache"
	"github.com/watchproxy/watchproxy/watchcache/object"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

type handler func(context.Context, *exchange.Request) *exchange.Response

// Handle implements Handler.
func (h handler) Handle(ctx context.Context, req *exchange.Request) *exchange.Response {
	resp := h(ctx, req)
	resp.Release = freeing{req}
	return resp
}

// Refused implements Handler.
func (handler) Refused(*exchange.Request, *exchange.Response) {}

// freeing keeps a request, as the proxy does.
type freeing struct{ req *exchange.Request }

func (f freeing) Written(int64) { f.req.Free() }

const (
	// unread is the number of unread bytes that a connection holds.
	unread = 64 << 10
	// patience is the time in which everything must happen.
	patience = 2 * time.Minute
)

func limits() exchange.Limits {
	return exchange.Limits{
		HeaderBytes: 64 << 10, Read: 30 * time.Second, Write: time.Minute, Idle: time.Minute, Stall: time.Minute,
	}
}

func newServer(h handler, l exchange.Limits) *Server {
	return &Server{
		Handler: h, Limits: func() exchange.Limits { return l }, Slots: fair.NewSlots(1), Strangers: NewStrangers(),
		Metrics: metrics.New(prometheus.NewRegistry()), Log: zap.NewNop(),
		Serving: context.Background(), Draining: context.Background(),
	}
}

// known returns a connection that counts against a user's limit.
func known(accepted net.Conn) *conn.Conn {
	nc := conn.New(accepted)
	nc.HoldAs("user", func() (giveBack func(), ok bool) { return func() {}, true })
	return nc
}

func serving(s *Server, nc *conn.Conn) (served chan struct{}) {
	served = make(chan struct{})
	go func() {
		defer close(served)
		s.Serve(nc)
	}()
	return served
}

func says(text string) *exchange.Response {
	resp := exchange.NewResponse(http.StatusOK, exchange.FromProxy)
	resp.Body = exchange.Bytes(text)
	return resp
}

// watching answers with a watch of c.
func watching(t *testing.T, c *watchcache.Cache, lifetime time.Duration) handler {
	t.Helper()
	return selecting(t, c, cachetest.Filter(t, c), lifetime)
}

func selecting(t *testing.T, c *watchcache.Cache, f *object.Filter, lifetime time.Duration) handler {
	t.Helper()
	return func(context.Context, *exchange.Request) *exchange.Response {
		cursor, err := c.WatchAfter(f, cachetest.Snapshot(t, c))
		if err != nil {
			panic(err)
		}
		resp := exchange.NewResponse(http.StatusOK, exchange.FromCache)
		resp.Body = watch.New(watch.Params{
			Plan: watch.Plan{
				Filter: f, Lifetime: lifetime,
				Form: wire.NewForm(wire.Choice{}, wire.Kind{Kind: "ConfigMap", ListKind: "ConfigMapList", APIVersion: "v1"}),
			},
			Feed:   watch.Feed{Cache: c, Cursor: cursor, Lag: new(watch.Lag)},
			Server: watch.Server{Draining: context.Background()},
		})
		return resp
	}
}
