package proxy

import (
	"cmp"
	"context"
	"crypto/tls"
	"math/rand/v2"
	"net"
	"net/http"
	"runtime/debug"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"github.com/watchproxy/watchproxy/proxy/access"
	"github.com/watchproxy/watchproxy/proxy/derived"
	"github.com/watchproxy/watchproxy/proxy/discovery"
	"github.com/watchproxy/watchproxy/proxy/exchange"
	"github.com/watchproxy/watchproxy/proxy/fair"
	"github.com/watchproxy/watchproxy/proxy/forward"
	"github.com/watchproxy/watchproxy/proxy/h2"
	"github.com/watchproxy/watchproxy/proxy/listen"
	"github.com/watchproxy/watchproxy/proxy/metrics"
	"github.com/watchproxy/watchproxy/proxy/read"
)

// Options are a server's settings.
type Options struct {
	read.Options
	// Drain is the time over which open watches end at shutdown.
	Drain time.Duration
	// Stall is the time for which a client may leave a watch unread before it is disconnected.
	Stall time.Duration
	// TLS is nil for plain HTTP/1.1. With TLS, the server offers HTTP/1.1 and HTTP/2.
	TLS *tls.Config
	// AnyHost accepts any Host header, for example on a Unix socket, unless a browser may have sent
	// the request.
	AnyHost bool
	// Limits bound the resources that clients may use.
	Limits exchange.Limits
	// AccessLog is the probability, from 0 to 1, that a request is logged.
	AccessLog float64
	// Workspace bounds the memory, in bytes, of answers that are made for one request, such as
	// YAML. 0 means 128 MiB. If an answer does not fit, its request is forwarded. Waiting requests
	// may use another quarter of this memory.
	Workspace int64
	// GoawayChance is the probability, from 0 to 1, that an HTTP/2 request makes the server end its
	// connection with GOAWAY. The client then opens a new connection, so clients spread over
	// replicas.
	GoawayChance float64
}

const workspaceSize = 128 << 20

// Server serves clients on one listener.
type Server struct {
	feeds    read.Feeds
	forwards *forward.Forwarder
	options  atomic.Pointer[Options]
	metrics  *metrics.Metrics
	log      *zap.Logger

	ctx       context.Context // ends when open requests are aborted
	cut       context.CancelFunc
	draining  context.Context // ends when the server begins to drain
	drain     context.CancelFunc
	late      atomic.Int64 // see lateMax
	sharing   *forward.Sharing
	listening *listen.Server
	fallbacks fallbackLimiter
	// workspace holds answers that are made for one request.
	workspace *fair.Workspace
	limits    limiter
	reader    *read.Reader
	documents *discovery.Copies
	// forwardSlots are for forwarded requests, readSlots for expensive reads from the cache.
	forwardSlots, readSlots *fair.Queue
	soonerSlots             *fair.Queue // for lists that upstream answers faster than the cache
}

// NewServer returns a server; Serve runs it.
func NewServer(feeds read.Feeds, forwards *forward.Forwarder, store *derived.Store, options Options, metrics *metrics.Metrics, log *zap.Logger) *Server {
	s := &Server{feeds: feeds, forwards: forwards, metrics: metrics, log: log}
	s.options.Store(&options)
	s.ctx, s.cut = context.WithCancel(context.Background())
	s.fallbacks = newFallbackLimiter(fallbackReads, fallbackWatches)
	s.draining, s.drain = context.WithCancel(s.ctx)
	s.divide(&options)
	s.limits.metrics, s.limits.limits = metrics, func() exchange.Limits { return s.options.Load().Limits }
	s.sharing = &forward.Sharing{Send: s.forward, Workspace: s.workspace, Serving: s.ctx, Shared: metrics.Shared.Inc}
	s.reader = read.New(read.Config{
		Feeds: feeds, Derived: store, Workspace: s.workspace, Slots: s.readSlots, Limits: &s.limits, Log: log,
		Options: func() read.Options { return s.options.Load().Options }, Draining: s.draining, DrainShare: s.drainShare,
	})
	s.documents = discovery.New(discovery.Config{
		Most: min(discovery.Most, s.workspace.Capacity/2), Send: s.sendOwn, Workspace: s.workspace, Serving: s.ctx,
		Access: func() *access.Access { return s.options.Load().Access }, Revalidated: metrics.Revalidated, Shared: metrics.Shared.Inc,
	})
	s.listening = s.listen(s)
	return s
}

// listen returns the listening server of a handler.
func (s *Server) listen(h exchange.Handler) *listen.Server {
	return listen.New(listen.Config{
		Handler: h, Slots: s.readSlots, Metrics: s.metrics, Log: s.log, Serving: s.ctx, Cut: s.cut, Draining: s.draining, Drain: s.drain,
		Options: func() listen.Options {
			o := s.options.Load()
			return listen.Options{Options: h2.Options{Limits: o.Limits, Stall: o.Stall, GoawayChance: o.GoawayChance}, TLS: o.TLS, Drain: o.Drain}
		},
	})
}

// divide sets up the slots and memory that users share. Without authentication all clients count as
// one user, which may use everything. In addition to the workspace, waiting requests may take a
// quarter of its size.
func (s *Server) divide(options *Options) {
	const waitingForwards, waitingReads = 8, 16 // an eighth and a sixteenth of the memory
	memory, users := cmp.Or(options.Workspace, workspaceSize), int64(1)
	if options.Access != nil {
		users = 2
	}
	forwards, reads := memory/waitingForwards, memory/waitingReads
	s.soonerSlots = fair.NewQueue(soonerMost, soonerMost/users, 0)
	s.forwardSlots = fair.NewQueue(int64(options.Limits.Forwards), max(1, int64(options.Limits.Forwards)/users), forwards)
	s.readSlots = fair.NewSlots(reads)
	s.workspace = fair.NewWorkspace(memory, memory/users, reads)
	s.workspace.CollectAfter(options.Workspace / 2) // never if there is no memory budget
}

// SetOptions changes the running server's options, except TLS, Access, AnyHost, Stall, Workspace
// and the limits HeaderBytes, Read, Idle and Forwards. Open requests keep the old options.
func (s *Server) SetOptions(o Options) {
	now := *s.options.Load()
	o.TLS, o.Access, o.AnyHost, o.Stall, o.Workspace = now.TLS, now.Access, now.AnyHost, now.Stall, now.Workspace
	o.Limits.HeaderBytes, o.Limits.Read, o.Limits.Idle, o.Limits.Forwards = now.Limits.HeaderBytes, now.Limits.Read, now.Limits.Idle, now.Limits.Forwards
	s.options.Store(&o)
}

// Serve serves l until ctx ends. Then it closes l and drains: watches end over the drain time,
// requests in flight may finish, and the remaining connections are closed.
func (s *Server) Serve(ctx context.Context, l net.Listener) error { return s.listening.Serve(ctx, l) }

// Handle implements exchange.Handler. It turns a panic into an error response, because otherwise one
// bad request could end all watches.
func (s *Server) Handle(ctx context.Context, req *exchange.Request, rt *exchange.Route) (resp *exchange.Response) {
	defer func() {
		if p := recover(); p != nil {
			s.log.Error("panic in a handler", zap.Any("panic", p), zap.String("path", short(req.Path)), zap.ByteString("stack", debug.Stack()))
			resp = exchange.StatusResponse(exchange.Failure(http.StatusInternalServerError, "InternalError", "internal error in watchproxy"), exchange.FromProxy)
		}
	}()
	return s.handle(ctx, req, rt)
}

// handle takes every request through the steps of Handle.
func (s *Server) handle(ctx context.Context, req *exchange.Request, rt *exchange.Route) *exchange.Response {
	if rt.Resource && rt.Verb == "list" && exchange.IsWatch(req.Query) {
		rt.Verb = "watch"
	}
	if refusal := s.refuse(ctx, req, rt); refusal != nil {
		return refusal
	}
	if !rt.Resource {
		if resp := s.documents.Answer(ctx, req); resp != nil {
			resp.Why = "discovery"
			return resp
		}
	}
	v := s.reader.Answer(ctx, req, *rt, false)
	if v.Reason == read.Sooner {
		if resp, ok := s.forwardSooner(ctx, req, *rt, v.Timed); ok {
			return resp
		}
		v = s.reader.Answer(ctx, req, *rt, true)
	}
	switch {
	case v.Answer != nil:
		return v.Answer
	case ctx.Err() != nil:
		return exchange.ClientGone()
	}
	t, done := &forward.Trip{Takes: v.Timed.Takes()}, func() {}
	if req.Method == http.MethodGet && rt.Resource && rt.Plain && s.feeds.Lost(rt.GVR) >= read.LostGrace {
		t.Patience = lostPatience // whatever the reason to forward it
	}
	switch {
	case v.Reason.Stale():
		var refusal *exchange.Response
		if done, refusal = s.fallbacks.admit(ctx, rt.Verb); refusal != nil {
			return refusal
		}
	case v.Reason == read.Early:
		var ok bool
		if done, ok = s.admitLate(); !ok {
			return v.Expired
		}
	}
	resp := s.timedForward(ctx, req, *rt, t, v.Timed, done)
	resp.Why = string(v.Reason)
	return resp
}

// forwardSooner forwards a list that upstream usually answers faster than the cache. If upstream is
// busy or takes too long, it returns false, and the cache answers.
func (s *Server) forwardSooner(ctx context.Context, req *exchange.Request, rt exchange.Route, timed *read.Timed) (resp *exchange.Response, ok bool) {
	slot := fair.Claim{User: req.User(), Size: 1, Cost: 1}
	if !s.forwardSlots.Try(slot) {
		return nil, false // it would wait
	}
	s.forwardSlots.Give(slot.User, slot.Size)
	if !s.soonerSlots.Try(slot) {
		return nil, false
	}
	defer s.soonerSlots.Give(slot.User, slot.Size) // by then, upstream has done most of its work
	t := &forward.Trip{Takes: timed.Takes()}
	t.Patience = max(soonerPatience, 10*t.Takes)
	resp = s.timedForward(ctx, req, rt, t, timed, func() {})
	resp.Why = string(read.Sooner)
	if resp.Source == exchange.FromProxy && resp.Status >= http.StatusInternalServerError && ctx.Err() == nil && t.Since() >= t.Patience {
		timed.Feed.Answered(timed.Scope, t.Since(), false)
		return nil, false
	}
	return resp, true
}

// timedForward forwards a request. If a feed could have answered the request, the feed records how
// long upstream took.
func (s *Server) timedForward(ctx context.Context, req *exchange.Request, rt exchange.Route, t *forward.Trip, timed *read.Timed, done func()) *exchange.Response {
	resp := s.sharing.Forward(ctx, req, rt, t, forward.OnceBoth(s.metrics.ForwardBegan(rt.Verb), done))
	if timed != nil && !t.Sent.IsZero() && resp.Source == exchange.FromUpstream && ctx.Err() == nil {
		switch {
		case resp.Status == http.StatusOK:
			timed.Feed.Answered(timed.Scope, t.Since(), true)
		case resp.Status == http.StatusTooManyRequests, resp.Status >= http.StatusInternalServerError:
			timed.Feed.Answered(timed.Scope, t.Since(), false)
		}
	}
	return resp
}

// refuse makes the early checks: size, sender, host, limits.
func (s *Server) refuse(ctx context.Context, req *exchange.Request, rt *exchange.Route) (refusal *exchange.Response) {
	if most := s.options.Load().Limits.URIBytes; len(req.Target) > most {
		return req.Fail(exchange.URITooLong(most), exchange.FromProxy)
	}
	if req.HidesIdentity() {
		return req.Fail(exchange.BadRequest("the Connection header must not name headers that tell who sends the request"), exchange.FromProxy)
	}
	if s.options.Load().Access != nil {
		if refusal = s.authenticate(ctx, req); refusal != nil {
			return refusal
		}
	}
	if refusal = s.refuseBrowser(req, rt); refusal != nil {
		return refusal
	}
	return s.limits.admit(req)
}

// forward sends a request upstream. It calls done once, when the request ends. When the server
// drains, a forwarded watch ends within the drain time, like a watch from the cache.
func (s *Server) forward(ctx context.Context, req *exchange.Request, rt exchange.Route, t *forward.Trip, done func()) *exchange.Response {
	if rt.Subresource != "proxy" && req.Body != nil {
		most := s.options.Load().Limits.BodyBytes
		if req.Body.Length > most {
			done()
			return req.Fail(exchange.BodyTooLarge(most), exchange.FromProxy)
		}
		req.Body.Most = most
	}
	admitted, refusal := s.admitForward(ctx, req, rt)
	if refusal != nil {
		done()
		return refusal
	}
	done = forward.OnceBoth(done, admitted)
	if rt.Verb != "watch" {
		resp := s.forwards.Send(ctx, nil, req, t, done)
		if resp.Lasts = lasting(rt); resp.Tunnel != nil && !resp.Lasts {
			admitted() // an upgraded connection may last, so it holds no slot
		}
		return resp
	}
	over, end := context.WithCancel(context.Background())
	undrain := context.AfterFunc(s.draining, func() { time.AfterFunc(s.drainShare(), end) })
	resp := s.forwards.Send(ctx, over, req, t, forward.OnceBoth(done, func() {
		undrain()
		end()
	}))
	resp.Lasts = true
	return resp
}

// sendOwn sends a get of the proxy's own upstream.
func (s *Server) sendOwn(ctx context.Context, req *exchange.Request) *exchange.Response {
	const verb = "get"
	return s.forward(ctx, req, exchange.Route{Verb: verb}, &forward.Trip{}, s.metrics.ForwardBegan(verb))
}

// drainShare returns a random delay, up to the drain time, after which a watch ends. The delays
// differ so that clients do not all reconnect at the same time.
func (s *Server) drainShare() time.Duration { return rand.N(s.options.Load().Drain + 1) }

// Answered implements exchange.Handler. It counts a request whose answer is about to be written, and
// logs a sample. It logs no queries, because they may hold secrets.
func (s *Server) Answered(req *exchange.Request, rt exchange.Route, resp *exchange.Response, took time.Duration) {
	s.metrics.Request(rt, resp, took)
	sampling := s.options.Load().AccessLog
	if sampling == 0 || rand.Float64() >= sampling {
		return
	}
	s.log.Info("request",
		zap.String("verb", rt.Verb), zap.String("path", short(req.Path)), zap.Int("code", resp.Status), zap.String("source", string(resp.Source)),
		zap.Duration("latency", took), zap.String("user", short(req.User())),
		zap.String("userAgent", short(req.Header.Get("User-Agent"))), zap.String("auditID", short(resp.Header.Get("Audit-Id"))))
}

// short truncates a client's text for the log.
func short(s string) string {
	const most = 512
	if len(s) <= most {
		return s
	}
	return s[:most] + "…"
}
