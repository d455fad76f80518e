package listen

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/valyala/fasthttp"
	"go.uber.org/zap"

	"github.com/watchproxy/watchproxy/proxy/conn"
	"github.com/watchproxy/watchproxy/proxy/exchange"
	"github.com/watchproxy/watchproxy/proxy/fair"
	"github.com/watchproxy/watchproxy/proxy/h2"
	"github.com/watchproxy/watchproxy/proxy/metrics"
)

// Config has the parts of a Server.
type Config struct {
	Handler exchange.Handler
	// TLS is nil for plain HTTP. With TLS, clients choose between HTTP/1.1 and HTTP/2.
	TLS   *tls.Config
	Life  *exchange.Life
	Slots *fair.Slots // for long responses
	// Begun, Users and Unread limit what connections hold (see conn.Heads); nil for no limit.
	Begun, Users, Unread *fair.Pool
	Metrics              *metrics.Metrics
	Log                  *zap.Logger
}

// shortHead is the maximum length of a head that a server with small buffers gets, in bytes.
const shortHead = 4 << 10

// pathMost limits the bytes of a request line before its query, if any. Fasthttp cleans a path in
// quadratic time, though nobody here asks for that: 169 ms for 64 KiB.
const pathMost = 8 << 10

const (
	// drainGrace is the time after the drain time in which connections may still finish.
	drainGrace = 2 * time.Second
	// lastAnswer is the part of it that is left for the answers to the last requests.
	lastAnswer = drainGrace / 2
	// roundTripMax is the time for which a draining server accepts connections, and waits for a
	// request on a connection that is kept alive.
	roundTripMax = 500 * time.Millisecond
)

// Server serves the connections of one listener.
type Server struct {
	Config
	limits  atomic.Pointer[exchange.Limits]
	conns   conn.Set
	h2      *h2.Server
	serving sync.WaitGroup // connections
	// http has the servers for HTTP/1: short for requests with short heads, long for all others.
	http struct{ short, long *fasthttp.Server }
}

// New returns a server. Serve runs it.
func New(c Config, limits exchange.Limits) *Server {
	s := &Server{Config: c}
	s.SetLimits(limits)
	s.http.short = s.newHTTP1(shortHead)
	s.http.long = s.newHTTP1(limits.HeaderBytes)
	s.h2 = &h2.Server{
		Handler:   c.Handler,
		Limits:    s.Limits,
		Slots:     c.Slots,
		Strangers: h2.NewStrangers(),
		Metrics:   c.Metrics,
		Log:       c.Log,
		Serving:   c.Life.Serving(),
		Draining:  c.Life.Draining(),
	}
	return s
}

// SetLimits changes the limits of the running server, except HeaderBytes and Read.
func (s *Server) SetLimits(l exchange.Limits) { s.limits.Store(&l) }

// Limits returns the present limits.
func (s *Server) Limits() exchange.Limits { return *s.limits.Load() }

// Connections returns the number of open connections.
func (s *Server) Connections() int { return s.conns.Len() }

// Serve serves l until ctx ends. Then it drains: it accepts clients for another round trip, waits
// for the first request of a connection until the drain time is over, and for a further request for
// one round trip. It ends watches over the drain time, waits for requests, and closes the remaining
// connections.
func (s *Server) Serve(ctx context.Context, l net.Listener) error {
	defer s.Life.Cut()
	defer context.AfterFunc(s.Life.Serving(), s.conns.Cut)()
	accepting := &conn.Listener{
		Listener: l, TLS: s.TLS, Open: &s.conns, Ending: ctx.Done(),
		Metrics: s.Metrics, Log: s.Log,
	}
	if s.Begun != nil {
		accepting.Heads = &conn.Heads{
			Strangers: s.Begun,
			Users:     s.Users,
			Unread:    s.Unread,
		}
	}
	limits := s.Limits()
	if most, _ := limits.Crowd(); most < limits.Connections {
		s.Log.Warn("the limit of open files allows for fewer connections than maxConnections",
			zap.Int("wanted", limits.Connections), zap.Int("connections", most))
	}
	failed := make(chan error, 1)
	go func() { failed <- s.accept(accepting) }()
	select {
	case err := <-failed:
		if ctx.Err() == nil {
			s.Life.Cut()
			s.serving.Wait()
			return fmt.Errorf("serve %s: %w", l.Addr(), err)
		}
		failed <- err // for end
	case <-ctx.Done():
	}
	return s.end(context.WithoutCancel(ctx), accepting, failed)
}

func (s *Server) end(ctx context.Context, l *conn.Listener, accepting <-chan error) error {
	began := time.Now()
	stage := func(what string) {
		s.Log.Info(what, zap.Float64("seconds", time.Since(began).Seconds()))
	}
	stage("draining: ending watches")
	most := s.Life.Drain()
	limit, cancel := context.WithTimeout(ctx, most+drainGrace)
	defer cancel()
	defer context.AfterFunc(limit, s.Life.Cut)()
	defer time.AfterFunc(most+lastAnswer, s.Life.Stop).Stop()
	waits := conn.Drain{First: began.Add(most + lastAnswer), Next: min(most, roundTripMax)}
	s.conns.Drain(waits)
	err := l.Drain(waits.Next)
	if err := <-accepting; err != nil {
		s.Log.Debug("listener closed", zap.Error(err))
	}
	if closed := l.Close(); !errors.Is(closed, net.ErrClosed) {
		err = errors.Join(err, closed)
	}
	stage("draining: no new connections")
	s.serving.Wait()
	stage("drained: requests and streams ended")
	if limit.Err() != nil {
		s.Log.Warn("some connections had to be cut")
	}
	return err
}

func (s *Server) accept(l *conn.Listener) error {
	for {
		c, err := l.Accept()
		if err != nil {
			return err
		}
		if l.Admit(c, s.Limits()) {
			s.serving.Go(func() { s.serveConn(c) })
		}
	}
}
