package proxy

import (
	"cmp"
	"context"
	"crypto/tls"
	"math/rand/v2"
	"net"
	"net/http"
	"runtime"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"github.com/watchproxy/watchproxy/proxy/audit"
	"github.com/watchproxy/watchproxy/proxy/derived"
	"github.com/watchproxy/watchproxy/proxy/exchange"
	"github.com/watchproxy/watchproxy/proxy/fair"
	"github.com/watchproxy/watchproxy/proxy/forward"
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
	// AnyHost accepts any Host header, as for a sidecar's clients. It does not apply to requests that a
	// browser may have sent.
	AnyHost bool
	// OwnToken reports whether a bearer token is the proxy's own. It is used only without
	// authentication, and may be nil.
	OwnToken func(token string) bool
	// NeedsToken refuses requests without a bearer token. It is used only without authentication.
	NeedsToken bool
	// Limits bound the resources that clients may use.
	Limits exchange.Limits
	// AccessLog is the probability, from 0 to 1, that a request is logged.
	AccessLog float64
	// Memory limits the bytes of memory that all users hold for requests and for responses that are made
	// for one request. 0 means 512 MiB. Further requests are refused, and a list that does not fit is
	// forwarded. Open watches, logs and upgraded requests may hold as much, and unread bytes half as much.
	Memory int64
	// Strangers limits the bytes of memory of all requests that are not authenticated yet. 0 means
	// 128 MiB. Such clients' incomplete requests and unread bytes may hold half as much.
	Strangers int64
	// Window is the number of bytes of a forwarded response that upstream's transport may hold
	// unread.
	Window int64
	// Audit writes the audit log, or is nil.
	Audit *audit.Auditor
	// Views are further addresses with less of each object, by name. They must not change.
	Views map[string]*exchange.View
	// GoawayChance is the probability, from 0 to 1, that a request over HTTP/2 makes the server end
	// its connection with GOAWAY. The client then opens a new connection, so clients are
	// distributed among replicas.
	GoawayChance float64
}

// The defaults of Options.Memory and Options.Strangers.
const memorySize, strangersSize = 512 << 20, 128 << 20

// Server serves clients on one listener.
type Server struct {
	feeds    read.Feeds
	forwards *forward.Forwarder
	options  atomic.Pointer[Options]
	metrics  *metrics.Metrics
	log      *zap.Logger

	life   life
	queues queues
	limits limiter

	sharing   *forward.Sharing
	listening *listen.Server
	remarks   *remarkLog
	reader    *read.Reader
}

// life ends in steps.
type life struct {
	draining context.Context // ends when the server begins to drain
	drain    context.CancelFunc
	drainEnd atomic.Pointer[time.Time] // nil before the drain
	stopping context.Context           // ends shortly before open requests are aborted
	stop     context.CancelFunc
	ctx      context.Context // ends when open requests are aborted
	cut      context.CancelFunc
}

func (l *life) begin() {
	l.ctx, l.cut = context.WithCancel(context.Background())
	l.draining, l.drain = context.WithCancel(l.ctx)
	l.stopping, l.stop = context.WithCancel(context.Background())
}

// queues are what users share, and limit what each of them may use.
type queues struct {
	forwards *fair.Pool  // forwarded requests
	reads    *fair.Slots // turns of expensive reads from the cache, and of writing long bodies
	givenUp  *fair.Pool  // requests that clients have just given up
	// fallbackReads and fallbackWatches are for what upstream answers because a cache is out of date.
	fallbackReads, fallbackWatches *fair.Pool
	late                           *fair.Pool // see lateMax
	origins                        *fair.Pool // see originsMost
	// Of users: memory is for requests, which pass, and lasting for watches, logs and upgraded requests,
	// which may last for hours. Otherwise a user would be refused requests because of others' watches.
	memory, lasting *fair.Pool
	strangers       *fair.Pool // memory of requests that are not authenticated yet, by network
	// Of connections: begun is for what unknown clients have begun to send, and unread for what users'
	// clients leave unread.
	begun, unread *fair.Pool
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
		feeds: of.Feeds, forwards: of.Forwards, metrics: of.Metrics, log: of.Log, remarks: newRemarkLog(),
	}
	s.options.Store(&options)
	s.life.begin()
	s.divide(&options)
	s.limits.metrics, s.limits.limits = of.Metrics, func() exchange.Limits { return s.options.Load().Limits }
	s.sharing = &forward.Sharing{
		Send: s.forward, Serving: s.life.ctx, Shared: of.Metrics.Shared.Inc,
		Crowded: func() bool { return 2*s.queues.forwards.Taken() > s.queues.forwards.Capacity },
	}
	s.reader = read.New(read.Config{
		Feeds: of.Feeds, Derived: of.Derived, Memory: s.queues.memory, Slots: s.queues.reads,
		Limits: &s.limits, Lag: of.Metrics.Lag, Panicked: s.reviewPanicked, Log: of.Log,
		Options:  func() read.Options { return s.options.Load().Options },
		Draining: s.life.draining, DrainShare: s.drainShare,
	})
	s.listening = s.listen(s)
	return s
}

// listen returns the listening server for a handler.
func (s *Server) listen(h exchange.Handler) *listen.Server {
	return listen.New(listen.Config{
		Handler: h, Slots: s.queues.reads, Metrics: s.metrics, Log: s.log,
		Begun: s.queues.begun, Users: s.queues.memory, Unread: s.queues.unread,
		Serving: s.life.ctx, Cut: s.life.cut,
		Draining: s.life.draining, Drain: s.beginDrain, Stop: s.life.stop,
		Options: func() listen.Options {
			o := s.options.Load()
			return listen.Options{
				Limits: o.Limits, Stall: o.Stall, GoawayChance: o.GoawayChance, TLS: o.TLS, Drain: o.Drain,
			}
		},
	})
}

// divide creates the slots and memory that users share. Without authentication all clients count as
// one user, without a limit for each user.
func (s *Server) divide(options *Options) {
	shared := options.Access != nil
	s.queues.late = fair.NewPool(lateMax, shared)
	s.queues.givenUp = fair.NewPool(givenUpMost, shared)
	s.queues.fallbackReads = fair.NewPool(fallbackReads, shared)
	s.queues.fallbackWatches = fair.NewPool(fallbackWatches, shared)
	s.queues.forwards = fair.NewPool(int64(options.Limits.Forwards), shared)
	s.queues.origins = fair.NewPool(originsMost, shared)
	memory, strangers := cmp.Or(options.Memory, memorySize), cmp.Or(options.Strangers, strangersSize)
	s.queues.memory, s.queues.lasting = fair.NewPool(memory, shared), fair.NewPool(memory, shared)
	s.queues.strangers = fair.NewPool(strangers, true)
	s.queues.begun, s.queues.unread = fair.NewPool(strangers/2, true), fair.NewPool(memory/2, shared)
	s.limits.lasting = s.queues.lasting
	processors := max(1, runtime.GOMAXPROCS(0)-1) // one is left to cheap reads and the network
	s.queues.reads = fair.NewSlots(int64(processors))
}

// SetOptions changes the running server's options, except TLS, Access, OwnToken, NeedsToken, Audit,
// AnyHost, Views, Memory, Strangers, Window and the limits HeaderBytes, Read, Idle and Forwards.
// Open requests keep the old options.
func (s *Server) SetOptions(o Options) {
	now := *s.options.Load()
	o.TLS, o.Access, o.AnyHost, o.Window = now.TLS, now.Access, now.AnyHost, now.Window
	o.OwnToken, o.NeedsToken, o.Audit, o.Views = now.OwnToken, now.NeedsToken, now.Audit, now.Views
	o.Limits.HeaderBytes, o.Limits.Read, o.Limits.Idle, o.Limits.Forwards = now.Limits.HeaderBytes, now.Limits.Read, now.Limits.Idle, now.Limits.Forwards
	s.options.Store(&o)
}

// Serve serves l until ctx ends, and then drains (see [listen.Server.Serve]).
func (s *Server) Serve(ctx context.Context, l net.Listener) error { return s.listening.Serve(ctx, l) }

func (s *Server) reviewPanicked(reason any) { s.metrics.Panicked(s.log, metrics.InReview, reason) }

// Connections returns the number of open connections.
func (s *Server) Connections() int { return s.listening.Connections() }

// Handle implements exchange.Handler.
func (s *Server) Handle(ctx context.Context, req *exchange.Request, rt *exchange.Route) *exchange.Response {
	req.Ended = s.metrics.Began(req.Method)
	o := s.options.Load()
	enterView(o.Views, req, rt)
	if o.Audit == nil {
		resp, _ := s.recovered(req, func() *exchange.Response { return s.holdResponse(req, s.handle(ctx, req, rt)) })
		return resp
	}
	received := time.Now()
	o.Audit.Begin(req)
	resp, panicked := s.recovered(req, func() *exchange.Response { return s.holdResponse(req, s.handle(ctx, req, rt)) })
	resp, _ = s.recovered(req, func() *exchange.Response { return o.Audit.Answered(req, resp, received, panicked) })
	return resp
}

// recovered turns a panic in f into an error response. Otherwise one bad request could end all
// watches.
func (s *Server) recovered(req *exchange.Request, f func() *exchange.Response) (resp *exchange.Response, panicked bool) {
	defer func() {
		if p := recover(); p != nil {
			s.metrics.Panicked(s.log, metrics.InHandler, p, zap.String("path", short(req.Path)))
			resp = exchange.StatusResponse(exchange.Failure(http.StatusInternalServerError, "InternalError", "internal error in watchproxy"), exchange.FromProxy)
			panicked = true
		}
	}()
	return f(), false
}

// handle refuses a request or answers it.
func (s *Server) handle(ctx context.Context, req *exchange.Request, rt *exchange.Route) *exchange.Response {
	if refusal := s.refuse(ctx, req, rt); refusal != nil {
		return refusal
	}
	return cutForwarded(req, rt, s.answer(ctx, req, rt))
}

// refuse makes the early checks: size, sender, host, limits, impersonation. Until the sender is
// known, it parses nothing but the credentials.
func (s *Server) refuse(ctx context.Context, req *exchange.Request, rt *exchange.Route) (refusal *exchange.Response) {
	if req.HidesIdentity() {
		return req.Fail(exchange.BadRequest("the Connection header must not name headers that tell who sends the request"), exchange.FromProxy)
	}
	if s.options.Load().Access != nil {
		if answer := s.askOrigin(ctx, req); answer != nil {
			return answer
		}
		if refusal = s.authenticate(ctx, req); refusal != nil {
			return refusal
		}
	} else if refusal = s.dropOwnToken(req); refusal != nil {
		return refusal
	}
	if rt.Resource && rt.Verb == "list" && exchange.IsWatch(req.Query) {
		rt.Verb = "watch"
	}
	if refusal = s.refuseBrowser(req, rt); refusal != nil {
		return refusal
	}
	if refusal = s.limits.admit(req); refusal != nil {
		return refusal
	}
	if refusal = refuseInView(s.options.Load().Views, req, rt); refusal != nil {
		return refusal
	}
	if refusal = s.holdRequest(req, rt); refusal != nil {
		return refusal
	}
	return s.impersonate(ctx, req)
}

// bodyMax limits the body of a request for kube-apiserver, in bytes. It is kube-apiserver's own limit.
const bodyMax = 3 << 20

// forward sends a request upstream. It releases the attempt's admission when the request ends. When the
// server drains, a forwarded watch ends within the drain time, like a watch from the cache.
func (s *Server) forward(ctx context.Context, req *exchange.Request, rt exchange.Route, t *forward.Attempt) *exchange.Response {
	sent := false
	defer func() {
		if !sent { // after a refusal or a panic
			t.Release()
		}
	}()
	if rt.Subresource != "proxy" && req.Body != nil {
		// An aggregated API may accept longer bodies, and its responses may begin before a body without
		// a length ends. Lasting requests have no slot, so their number is not limited.
		aggregated := rt.Resource && !forward.KubernetesOwn(rt.GVR.Group)
		switch known := req.Body.Length >= 0; {
		case req.Body.Length <= bodyMax && (known || !aggregated):
			req.Body.Most, req.Body.Keep = bodyMax, (known || rt.Resource) && !lasting(rt)
		case !aggregated:
			return req.Fail(exchange.BodyTooLarge(bodyMax), exchange.FromProxy)
		}
	}
	if req.Body != nil && req.Body.Keep {
		// The body is read before the request takes a slot, because otherwise a few slow clients could
		// hold all slots. It can also be sent again after upstream has refused it with GOAWAY.
		roomForBody(req)
		req.Body.Fill()
		if refusal := req.BrokenBody(); refusal != nil {
			return refusal
		}
	}
	t.Lasts, t.Relayed, t.GivenUp = lasting(rt), rt.Subresource == "proxy", func() { s.countGivenUp(req.User()) }
	admitted, refusal := s.admitForward(ctx, req, rt)
	if refusal != nil {
		return refusal
	}
	if !t.Lasts {
		t.Hold(admitted)
		if req.WantsUpgrade() { // once upstream accepts it, a refusal would come too late
			counted, refusal := s.limits.AdmitWatch(req)
			if refusal != nil {
				return refusal
			}
			t.Hold(counted)
		}
		sent = true
		resp := s.forwards.Send(ctx, context.Background(), s.life.stopping, req, t)
		if resp.Tunnel != nil {
			admitted() // an upgraded connection has no time limit, so it holds no slot
		}
		return resp
	}
	// A response with a body counts as a watch until its client has it, or has left.
	var body atomic.Bool
	t.Hold(func() {
		if !body.Load() {
			admitted()
		}
	})
	over := context.Background()
	if rt.Verb == "watch" {
		drained, end := context.WithCancel(context.Background())
		undrain := context.AfterFunc(s.life.draining, func() { time.AfterFunc(s.drainShare(), end) })
		over = drained
		t.Hold(func() { undrain() })
	}
	sent = true
	resp := s.forwards.Send(ctx, over, s.life.stopping, req, t)
	if resp.Streaming = true; resp.Reader == nil {
		return resp
	}
	body.Store(true)
	if rt.Verb == "watch" {
		o := s.options.Load()
		resp.Stall = min(o.Stall, o.Limits.Write) // upstream's transport holds what is not read
		forward.WholeLines(resp, forward.KubernetesOwn(rt.GVR.Group))
	}
	resp.Reader = s.guardUnread(req, resp.Reader, admitted)
	return resp
}

func (s *Server) beginDrain() {
	end := time.Now().Add(s.options.Load().Drain)
	s.life.drainEnd.Store(&end)
	s.life.drain()
}

// drainShare returns a random delay, up to the drain time, after which a watch ends. The delays
// differ so that clients reconnect at different times. A watch that begins during the drain has
// only the rest of this time.
func (s *Server) drainShare() time.Duration {
	most := s.options.Load().Drain
	if end := s.life.drainEnd.Load(); end != nil {
		most = max(0, time.Until(*end))
	}
	return rand.N(most + 1)
}
