package listen

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/valyala/fasthttp"
	"go.uber.org/zap"
	"golang.org/x/net/http2"

	"github.com/watchproxy/watchproxy/proxy/conn"
	"github.com/watchproxy/watchproxy/proxy/exchange"
	"github.com/watchproxy/watchproxy/proxy/fair"
	"github.com/watchproxy/watchproxy/proxy/metrics"
)

// Handler answers requests.
type Handler interface {
	// Handle answers a request. It may correct the route's verb, and does not panic.
	Handle(ctx context.Context, req *exchange.Request, rt *exchange.Route) *exchange.Response
	// Answered is called when an answer is about to be written, also one to what is no request.
	Answered(req *exchange.Request, rt exchange.Route, resp *exchange.Response, took time.Duration)
}

// Options are the settings of a listener.
type Options struct {
	Limits exchange.Limits
	// TLS is nil for plain HTTP. Its clients choose between HTTP/1.1 and HTTP/2 in it.
	TLS *tls.Config
	// Drain is the time over which open watches are ended at shutdown.
	Drain time.Duration
	// Stall is how long a client may leave a watch unread before it is cut.
	Stall time.Duration
	// GoawayChance is the probability, from 0 to 1, that a request over HTTP/2 makes its connection
	// take no further ones.
	GoawayChance float64
}

// Config has what a listening server is made of.
type Config struct {
	Handler Handler
	Options func() Options
	Slots   *fair.Queue // for long answers
	Metrics *metrics.Metrics
	Log     *zap.Logger
	// Serving ends when Cut is called: what is still open is cut. Draining ends when Drain is called.
	Serving, Draining context.Context //nolint:containedctx // they are the server's
	Cut, Drain        context.CancelFunc
}

// shortHead is the longest head of a request, in bytes, for which a connection gets a small buffer.
const shortHead = 4 << 10

// drainGrace is how long after the drain time connections may finish.
const drainGrace = 2 * time.Second

// Server serves the connections of one listener.
type Server struct {
	handler  Handler
	options  func() Options
	slots    *fair.Queue
	metrics  *metrics.Metrics
	log      *zap.Logger
	ctx      context.Context // ends when what is still open is cut
	cut      context.CancelFunc
	draining context.Context // ends when the server begins to drain
	drain    context.CancelFunc

	pump    pump
	conns   conn.Set
	heads   conn.Heads
	serving sync.WaitGroup // connections without those in streams
	streams sync.WaitGroup
	// strangers are answers over HTTP/2 to clients that nobody knows, while they are written.
	strangers atomic.Int64
	// http are the servers of HTTP/1, for short heads of requests and for all others.
	http  struct{ short, long *fasthttp.Server }
	http2 struct {
		base   *http.Server
		server *http2.Server //nolint:staticcheck // see newHTTP2
	}
}

// New returns a server of connections. Serve runs it.
func New(c Config) (*Server, error) {
	s := &Server{
		handler: c.Handler, options: c.Options, slots: c.Slots, metrics: c.Metrics, log: c.Log,
		ctx: c.Serving, cut: c.Cut, draining: c.Draining, drain: c.Drain,
	}
	s.pump.log, s.pump.most = c.Log, runtime.GOMAXPROCS(0)
	s.http.short, s.http.long = s.newHTTP1(shortHead), s.newHTTP1(c.Options().Limits.HeaderBytes)
	if err := s.newHTTP2(); err != nil {
		return nil, fmt.Errorf("set up HTTP/2: %w", err)
	}
	return s, nil
}

// Connections is how many connections are open.
func (s *Server) Connections() int { return s.conns.Len() }

// Strangers is how many answers over HTTP/2 wait for clients that nobody knows.
func (s *Server) Strangers() int64 { return s.strangers.Load() }

// Serve serves l until ctx ends, then closes it and drains: no new connections, watches ended over the
// drain time, what is in flight finished, the rest cut.
func (s *Server) Serve(ctx context.Context, l net.Listener) error {
	defer s.cut()
	defer context.AfterFunc(s.ctx, s.conns.Cut)()
	accepting := &conn.Listener{
		Listener: l, TLS: s.options().TLS, Open: &s.conns, Ending: ctx.Done(), Refused: s.metrics.ConnectionRefused, Log: s.log,
		Limits: func() exchange.Limits { return s.options().Limits },
	}
	limits := accepting.Limits()
	if most, _ := limits.Crowd(); most < limits.Connections {
		s.log.Warn("the limit of open files allows for fewer connections than maxConnections",
			zap.Int("maxConnections", limits.Connections), zap.Int("connections", most))
	}
	failed := make(chan error, 1)
	go func() { failed <- s.accept(accepting) }()
	select {
	case err := <-failed:
		if ctx.Err() == nil {
			s.cut()
			s.serving.Wait()
			return fmt.Errorf("serve %s: %w", l.Addr(), err)
		}
		failed <- err // it has noticed the end before us
	case <-ctx.Done():
	}
	return s.end(context.WithoutCancel(ctx), l, failed)
}

// end drains.
func (s *Server) end(ctx context.Context, l net.Listener, accepting <-chan error) error {
	began := time.Now()
	stage := func(what string) {
		s.log.Info(what, zap.Float64("seconds", time.Since(began).Seconds()))
	}
	stage("draining: no new connections, ending watches")
	s.drain()
	limit, cancel := context.WithTimeout(ctx, s.options().Drain+drainGrace)
	defer cancel()
	// Once the time is up, whatever is left is cut.
	stop := context.AfterFunc(limit, s.cut)
	defer stop()
	err := errors.Join(l.Close(), s.http2.base.Shutdown(limit))
	if err := <-accepting; err != nil {
		s.log.Debug("listener closed", zap.Error(err))
	}
	s.conns.Drain()
	s.serving.Wait()
	stage("drained: requests finished")
	s.streams.Wait()
	stage("drained: streams ended")
	if limit.Err() != nil {
		s.log.Warn("some connections had to be cut")
	}
	return err
}

// accept accepts connections until that fails for good.
func (s *Server) accept(l net.Listener) error {
	for {
		c, err := l.Accept()
		if err != nil {
			return err
		}
		s.serving.Go(func() { s.serveConn(c.(*conn.Conn)) })
	}
}
