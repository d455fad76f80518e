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
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/valyala/fasthttp"
	"go.uber.org/goleak"
	"go.uber.org/zap"

	"github.com/watchproxy/watchproxy/bench/conntest"
	"github.com/watchproxy/watchproxy/proxy/exchange"
	"github.com/watchproxy/watchproxy/proxy/fair"
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
func (h handler) Handle(_ context.Context, req *exchange.Request) *exchange.Response {
	return h(req)
}

// Refused implements Handler.
func (handler) Refused(*exchange.Request, *exchange.Response) {}

// unbuffered is the number of unread bytes that a connection in memory holds. It is less than a
// large event.
const unbuffered = 8 << 10

// stall is the time for which a client may leave a watch unread.
const stall = 3 * time.Minute

// drainTime is the time over which the server of a peer drains.
const drainTime = time.Minute

// newServer returns a server that is not running yet.
func newServer(h handler, config *tls.Config, drain time.Duration) *Server {
	life := exchange.NewLife()
	life.SetDrainTime(drain)
	limits := exchange.Limits{HeaderBytes: 64 << 10, Read: 2 * time.Minute, Write: time.Minute, Idle: 4 * time.Minute, Stall: stall, Connections: 1000}
	return New(Config{
		Handler: h, TLS: config, Life: life,
		Slots: fair.NewSlots(1), Begun: fair.NewPool(headsPart, true), Users: fair.NewPool(headsPart, true), Unread: fair.NewPool(headsPart, true), Metrics: metrics.New(prometheus.NewRegistry()), Log: zap.NewNop(),
	}, limits)
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

// peer is a client in a bubble, and its server.
type peer struct {
	net.Conn
	raw    net.Conn // below TLS
	from   *bufio.Reader
	t      *testing.T
	server *Server
	l      *conntest.Listener
	drain  func() // begins a drain
}

// talk lets a client talk to a server, over TLS if config is not nil. Its connection holds a number of unread
// bytes.
func talk(t *testing.T, h handler, config *tls.Config, unread int, do func(p *peer)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		p := &peer{t: t, server: newServer(h, config, drainTime), l: conntest.Listen(unread)}
		begin, end := p.server.runs(t, p.l)
		p.drain = begin
		p.raw = p.dial()
		p.Conn = p.raw
		if p.from = bufio.NewReader(p); config != nil {
			p.Conn = overTLS(p.raw, "http/1.1", nil)
		}
		do(p)
		_ = p.Close()
		end()
	})
}

// dial opens another connection.
func (p *peer) dial() net.Conn {
	p.t.Helper()
	c, err := p.l.Dial()
	if err != nil {
		p.t.Fatal(err)
	}
	return c
}

// sends sends texts, each when all is quiet.
func (p *peer) sends(texts ...string) {
	p.t.Helper()
	for _, text := range texts {
		if _, err := io.WriteString(p, text); err != nil {
			p.t.Fatal(err)
		}
		synctest.Wait()
	}
}

// reads reads a response. Its error is that of reading the body.
func (p *peer) reads() (resp *http.Response, body string, err error) {
	p.t.Helper()
	resp, err = http.ReadResponse(p.from, nil)
	if err != nil {
		p.t.Fatal(err)
	}
	all, err := io.ReadAll(resp.Body)
	return resp, string(all), err
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
