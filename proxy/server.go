package proxy

import (
	"context"
	"crypto/tls"
	"net"
	"net/http"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"github.com/watchproxy/watchproxy/proxy/audit"
	"github.com/watchproxy/watchproxy/proxy/derived"
	"github.com/watchproxy/watchproxy/proxy/exchange"
	"github.com/watchproxy/watchproxy/proxy/forward"
	"github.com/watchproxy/watchproxy/proxy/listen"
	"github.com/watchproxy/watchproxy/proxy/metrics"
	"github.com/watchproxy/watchproxy/proxy/read"
)

// Options are a server's settings.
type Options struct {
	Fixed
	read.Options // Access is fixed, too
	// Limits bound the resources that clients may use.
	Limits exchange.Limits
	// Drain is the time over which open watches end at shutdown.
	Drain time.Duration
	// AccessLog is the probability, from 0 to 1, that a request is logged.
	AccessLog float64
}

// Fixed are the settings that cannot change while the server runs.
type Fixed struct {
	// TLS is nil for plain HTTP/1.1. With TLS, the server offers HTTP/1.1 and HTTP/2.
	TLS *tls.Config
	// AnyHost accepts any Host header, as for a sidecar's clients, if no browser can have sent it.
	AnyHost bool
	// OwnToken reports whether a bearer token is the proxy's own. It is used only without
	// authentication, and may be nil.
	OwnToken func(token string) bool
	// NeedsToken refuses requests without a bearer token. It is used only without authentication.
	NeedsToken bool
	// Memory limits the bytes that all users hold for requests and for responses made for one
	// request. 0 means 512 MiB. Further requests are refused, and a list that does not fit is
	// forwarded. Watches, logs and upgraded requests may hold as much, and unread bytes half as
	// much.
	Memory int64
	// Strangers limits the bytes of memory of all requests that are not authenticated yet. 0 means
	// 128 MiB. Such clients' incomplete requests and unread bytes may hold half as much.
	Strangers int64
	// Window is how many bytes of a forwarded response upstream's transport may hold unread.
	Window int64
	// Audit writes the audit log, or is nil.
	Audit *audit.Auditor
	// Views are further addresses with less of each object, by name.
	Views map[string]*exchange.View
}

// The defaults of Fixed.Memory and Fixed.Strangers.
const memorySize, strangersSize = 512 << 20, 128 << 20

// Server serves clients on one listener.
type Server struct {
	feeds   read.Feeds
	options *atomic.Pointer[Options]
	metrics *metrics.Metrics
	log     *zap.Logger
	life    *exchange.Life

	limits         *limiter
	authentication *authentication
	reader         *read.Reader
	upstream       *upstream
	requests       *requestLog
	listening      *listen.Server
}

// Parts are what a server is made of.
type Parts struct {
	Feeds    read.Feeds
	Forwards *forward.Forwarder
	Derived  *derived.Store
	Metrics  *metrics.Metrics
	Log      *zap.Logger
}

// NewServer returns a server; Serve runs it.
func NewServer(of Parts, options Options) *Server {
	s := &Server{
		feeds:   of.Feeds,
		options: new(atomic.Pointer[Options]),
		metrics: of.Metrics,
		log:     of.Log,
		life:    exchange.NewLife(),
	}
	s.options.Store(&options)
	s.life.SetDrainTime(options.Drain)
	s.limits = newLimiter(s.options, of.Metrics)
	s.requests = newRequestLog(s.options, of.Metrics, of.Log)
	s.upstream = &upstream{
		forwards: of.Forwards,
		options:  s.options,
		limits:   s.limits,
		requests: s.requests,
		life:     s.life,
		draining: s.life.Draining(),
	}
	s.authentication = &authentication{
		options:  s.options,
		limits:   s.limits,
		upstream: s.upstream,
	}
	s.reader = read.New(read.Config{
		Feeds:   of.Feeds,
		Derived: of.Derived,
		Memory:  s.limits.queues.memory,
		Slots:   s.limits.queues.reads,
		Limits:  s.limits,
		Metrics: of.Metrics,
		Log:     of.Log,
		Life:    s.life,
	}, options.Options)
	s.listening = s.listen(s)
	return s
}

func (s *Server) listen(h exchange.Handler) *listen.Server {
	queues, o := &s.limits.queues, s.options.Load()
	return listen.New(listen.Config{
		Handler: h,
		TLS:     o.TLS,
		Life:    s.life,
		Slots:   queues.reads,
		Begun:   queues.begun,
		Users:   queues.memory,
		Unread:  queues.unread,
		Metrics: s.metrics,
		Log:     s.log,
	}, o.Limits)
}

// SetOptions changes the running server's options, except those that are fixed. The limits
// HeaderBytes, Read, Idle and Forwards must stay the same. Open requests keep the old options.
func (s *Server) SetOptions(o Options) {
	now := s.options.Load()
	o.Fixed, o.Access = now.Fixed, now.Access
	s.options.Store(&o)
	s.life.SetDrainTime(o.Drain)
	s.reader.SetOptions(o.Options)
	s.listening.SetLimits(o.Limits)
}

// Serve serves l until ctx ends, and then drains (see [listen.Server.Serve]).
func (s *Server) Serve(ctx context.Context, l net.Listener) error {
	return s.listening.Serve(ctx, l)
}

// Connections returns the number of open connections.
func (s *Server) Connections() int { return s.listening.Connections() }

// Handle implements exchange.Handler.
func (s *Server) Handle(ctx context.Context, req *exchange.Request) *exchange.Response {
	began := time.Now()
	req.Route = exchange.ParseRoute(req.Method, req.Path)
	req.InFlight = s.metrics.Began(req.Method)
	resp := s.audited(ctx, req)
	s.requests.answered(req, resp, time.Since(began))
	return resp
}

// audited answers a request, and writes its events if upstream does not.
func (s *Server) audited(ctx context.Context, req *exchange.Request) *exchange.Response {
	o := s.options.Load()
	enterView(o.Views, req)
	respond := func() *exchange.Response { return s.limits.holdResponse(req, s.handle(ctx, req)) }
	if o.Audit == nil {
		resp, _ := s.recovered(req, respond)
		return resp
	}
	received := time.Now()
	o.Audit.Begin(req)
	resp, panicked := s.recovered(req, respond)
	resp, _ = s.recovered(req, func() *exchange.Response {
		return o.Audit.Answered(req, resp, received, panicked)
	})
	return resp
}

// Refused implements exchange.Handler.
func (s *Server) Refused(req *exchange.Request, resp *exchange.Response) {
	req.Route = exchange.ParseRoute(req.Method, req.Path)
	s.requests.answered(req, resp, 0)
}

// recovered turns a panic in f into an error response. One bad request must not end all watches.
func (s *Server) recovered(
	req *exchange.Request, f func() *exchange.Response,
) (resp *exchange.Response, panicked bool) {
	defer func() {
		if p := recover(); p != nil {
			s.metrics.Panicked(s.log, metrics.InHandler, p, zap.String("path", short(req.Path)))
			resp = exchange.StatusResponse(exchange.Failure(
				http.StatusInternalServerError, "InternalError", "internal error in watchproxy"))
			panicked = true
		}
	}()
	return f(), false
}

func (s *Server) handle(ctx context.Context, req *exchange.Request) *exchange.Response {
	if refusal := s.refuse(ctx, req); refusal != nil {
		return refusal
	}
	return cutForwarded(req, s.answer(ctx, req))
}

// refuse makes the early checks. Until the sender is known, it parses only the credentials.
func (s *Server) refuse(ctx context.Context, req *exchange.Request) (refusal *exchange.Response) {
	if exchange.HidesIdentity(req.Header) {
		return req.Refuse(exchange.BadRequest(
			"the Connection header must not name headers that tell who sends the request"))
	}
	if s.options.Load().Access != nil {
		if answer := s.authentication.askOrigin(ctx, req); answer != nil {
			return answer
		}
		if refusal = s.authentication.authenticate(ctx, req); refusal != nil {
			return refusal
		}
	} else if refusal = dropOwnToken(s.options.Load(), req); refusal != nil {
		return refusal
	}
	if req.Route.Resource && req.Route.Verb == "list" && exchange.IsWatch(req.Query) {
		req.Route.Verb = "watch"
	}
	if refusal = refuseBrowser(s.options.Load(), req); refusal != nil {
		return refusal
	}
	if refusal = s.limits.admit(req); refusal != nil {
		return refusal
	}
	if refusal = refuseInView(s.options.Load().Views, req); refusal != nil {
		return refusal
	}
	if refusal = s.limits.holdRequest(req); refusal != nil {
		return refusal
	}
	return s.authentication.impersonate(ctx, req)
}
