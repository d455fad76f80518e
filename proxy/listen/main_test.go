package listen

import (
	"bufio"
	"context"
	"crypto/tls"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/valyala/fasthttp"
	"go.uber.org/goleak"
	"go.uber.org/zap"

	"github.com/watchproxy/watchproxy/proxy/conn"
	"github.com/watchproxy/watchproxy/proxy/conn/conntest"
	"github.com/watchproxy/watchproxy/proxy/exchange"
	"github.com/watchproxy/watchproxy/proxy/fair"
	"github.com/watchproxy/watchproxy/proxy/h2"
	"github.com/watchproxy/watchproxy/proxy/metrics"
)

func TestMain(m *testing.M) {
	// This starts fasthttp's clock, which never ends, outside all bubbles.
	_ = new(fasthttp.Response).Write(bufio.NewWriter(io.Discard))
	goleak.VerifyTestMain(m,
		// fasthttp's clock never ends. Its pool of goroutines ends only after a sleep.
		goleak.IgnoreAnyFunction("github.com/valyala/fasthttp.updateServerDate.func1"),
		goleak.IgnoreAnyFunction("github.com/valyala/fasthttp.(*workerPool).Start.func2"),
	)
}

// handler answers requests.
type handler func(req *exchange.Request) *exchange.Response

// Handle implements Handler.
func (h handler) Handle(_ context.Context, req *exchange.Request, _ *exchange.Route) *exchange.Response {
	return h(req)
}

// Answered implements Handler.
func (handler) Answered(*exchange.Request, exchange.Route, *exchange.Response, time.Duration) (written func(int64)) {
	return func(int64) {}
}

// unbuffered is the number of unread bytes that a connection in memory holds. It is less than a
// large event.
const unbuffered = 8 << 10

// stall is the time for which a client may leave a watch unread.
const stall = 3 * time.Minute

// newServer returns a server that is not running yet.
func newServer(h handler, config *tls.Config, drain time.Duration) *Server {
	serving, cut := context.WithCancel(context.Background())
	draining, beginDrain := context.WithCancel(serving)
	limits := exchange.Limits{HeaderBytes: 64 << 10, Read: 2 * time.Minute, Write: time.Minute, Idle: 4 * time.Minute, Connections: 1000}
	return New(Config{
		Handler: h, Options: func() Options {
			return Options{Options: h2.Options{Limits: limits, Stall: stall}, TLS: config, Drain: drain}
		},
		Slots: fair.NewSlots(1), Heads: &conn.Heads{Strangers: fair.NewPool(headsPart, true), Users: fair.NewPool(headsPart, true), Unread: fair.NewPool(headsPart, true)}, Metrics: metrics.New(prometheus.NewRegistry()), Log: zap.NewNop(),
		Serving: serving, Cut: cut, Draining: draining, Drain: beginDrain, Stop: func() {},
	})
}

// runs runs a server until end is called. end waits until the server has drained.
func (s *Server) runs(t *testing.T, l net.Listener) (drain, end func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	served := make(chan error, 1)
	go func() { served <- s.Serve(ctx, l) }()
	return cancel, func() {
		cancel()
		if err := <-served; err != nil {
			t.Error(err)
		}
	}
}

// connect runs a server until the test ends, and returns a client's connection that holds a number of
// unread bytes.
func (s *Server) connect(t *testing.T, unread int) net.Conn {
	t.Helper()
	l := conntest.Listen(unread)
	_, end := s.runs(t, l)
	t.Cleanup(end)
	c, err := l.Dial()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// tlsConfig returns the configuration of a server.
func tlsConfig(t *testing.T) *tls.Config {
	t.Helper()
	s := httptest.NewUnstartedServer(http.NotFoundHandler())
	s.StartTLS()
	defer s.Close()
	return &tls.Config{Certificates: s.TLS.Certificates, NextProtos: []string{"h2", "http/1.1"}}
}

// overTLS returns a client over TLS. Its handshake is quick even with the race detector.
func overTLS(c net.Conn, protocol string, sessions tls.ClientSessionCache) *tls.Conn {
	return tls.Client(c, &tls.Config{
		InsecureSkipVerify: true, ServerName: "a", NextProtos: []string{protocol},
		ClientSessionCache: sessions, CurvePreferences: []tls.CurveID{tls.CurveP256},
	})
}
