package proxy

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/watchproxy/watchproxy/proxy/exchange"
	"github.com/watchproxy/watchproxy/proxy/fair"
	"github.com/watchproxy/watchproxy/proxy/metrics"
)

type perUserCounts struct {
	mu struct {
		sync.Mutex
		held map[string]int
	}
}

// take adds 1 to a user's count. It fails if the count has already reached most.
func (h *perUserCounts) take(name string, most int) (giveBack func(), ok bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.mu.held == nil {
		h.mu.held = map[string]int{}
	}
	if h.mu.held[name] >= most {
		return nil, false
	}
	h.mu.held[name]++
	return sync.OnceFunc(func() {
		h.mu.Lock()
		defer h.mu.Unlock()
		if h.mu.held[name]--; h.mu.held[name] == 0 {
			delete(h.mu.held, name)
		}
	}), true
}

type limiter struct {
	options     *atomic.Pointer[Options]
	metrics     *metrics.Metrics
	connections perUserCounts
	watches     perUserCounts
	queues      queues
}

// queues are what users share, and limit what each of them may use.
type queues struct {
	forwards *fair.Pool  // forwarded requests
	reads    *fair.Slots // turns of expensive reads from the cache, and of writing long bodies
	givenUp  *fair.Pool  // requests that clients have just given up
	// fallbackReads and fallbackWatches are for what upstream answers for an outdated cache.
	fallbackReads, fallbackWatches *fair.Pool
	late                           *fair.Pool // see lateMax
	origins                        *fair.Pool // see originsMost
	// Of users: memory is for requests, and lasting for watches, logs and upgraded requests, which
	// may last for hours. Otherwise a user would be refused requests because of others' watches.
	memory, lasting *fair.Pool
	strangers       *fair.Pool // memory of requests that are not authenticated yet, by network
	// Of connections: begun is for what unknown clients have begun to send, and unread for what
	// users' clients leave unread.
	begun, unread *fair.Pool
}

func newLimiter(options *atomic.Pointer[Options], metrics *metrics.Metrics) *limiter {
	return &limiter{
		options: options,
		metrics: metrics,
		queues:  newQueues(options.Load()),
	}
}

// newQueues returns the slots and memory that users share. Without authentication all clients count
// as one user, without a limit for each user.
func newQueues(options *Options) queues {
	shared := options.Access != nil
	memory := cmp.Or(options.Memory, memorySize)
	strangers := cmp.Or(options.Strangers, strangersSize)
	processors := max(1, runtime.GOMAXPROCS(0)-1) // one is left to cheap reads and the network
	return queues{
		forwards:        fair.NewPool(int64(options.Limits.Forwards), shared),
		reads:           fair.NewSlots(int64(processors)),
		givenUp:         fair.NewPool(givenUpMost, shared),
		fallbackReads:   fair.NewPool(fallbackReads, shared),
		fallbackWatches: fair.NewPool(fallbackWatches, shared),
		late:            fair.NewPool(lateMax, shared),
		origins:         fair.NewPool(originsMost, shared),
		memory:          fair.NewPool(memory, shared),
		lasting:         fair.NewPool(memory, shared),
		strangers:       fair.NewPool(strangers, true),
		begun:           fair.NewPool(strangers/2, true),
		unread:          fair.NewPool(memory/2, shared),
	}
}

func (l *limiter) limits() exchange.Limits { return l.options.Load().Limits }

func (l *limiter) admit(req *exchange.Request) (refusal *exchange.Response) {
	name := req.User()
	if req.Conn.Crowded() {
		return l.tooMany(req, "connections", "too many connections are open")
	}
	take := func() (func(), bool) { return l.connections.take(name, l.limits().UserConnections) }
	if !req.Conn.HoldAs(name, take) {
		message := fmt.Sprintf("user %q has too many connections open", name)
		return l.tooMany(req, "user_connections", message)
	}
	return nil
}

// AdmitWatch implements read.Limiter. It counts an open watch of the request's user.
func (l *limiter) AdmitWatch(req *exchange.Request) (done func(), refusal *exchange.Response) {
	name := req.User()
	uncount, ok := l.watches.take(name, l.limits().UserWatches)
	if !ok {
		message := fmt.Sprintf("user %q has too many watches open", name)
		return nil, l.tooMany(req, "user_watches", message)
	}
	giveBack, ok := l.holdWatch(req)
	if !ok {
		uncount()
		return nil, l.tooMany(req, "watches", "too many watches are open")
	}
	return sync.OnceFunc(func() {
		giveBack()
		uncount()
	}), nil
}

func (l *limiter) tooMany(req *exchange.Request, limit, message string) *exchange.Response {
	l.metrics.Limited.WithLabelValues(limit).Inc()
	resp := req.Refuse(exchange.TooManyRequests(message))
	resp.Last = limit == "connections" || limit == "user_connections"
	return resp
}

// GaveUp implements read.Limiter. It answers a request whose wait has failed.
func (l *limiter) GaveUp(
	req *exchange.Request, err error, limit, message string,
) *exchange.Response {
	if errors.Is(err, context.Canceled) {
		return exchange.ClientGone()
	}
	return l.tooMany(req, limit, message)
}

// admitForward waits for a forwarded request's slot for as long as the client waits. It refuses a
// request only if the user has given up too many requests.
func (l *limiter) admitForward(
	ctx context.Context, req *exchange.Request,
) (done func(), refusal *exchange.Response) {
	user := req.User()
	if !l.mayGiveUp(user) {
		return nil, l.tooMany(req, "given_up", tooManyGivenUp)
	}
	if lasting(req.Route) {
		return l.AdmitWatch(req) // an open watch uses memory but no slot
	}
	if !l.queues.forwards.Try(user, 1) {
		req.Body.ReadAhead()
		ctx, stop := req.Attended(ctx)
		err := l.queues.forwards.Take(ctx, user, 1)
		stop()
		if err != nil {
			return nil, l.GaveUp(req, err, "forwards", tooManyForwards)
		}
	}
	return sync.OnceFunc(func() { l.queues.forwards.Give(user, 1) }), nil
}

// givenUpMost limits the forwarded requests given up within givenUpTime that upstream may still
// work on. Users share connections upstream; kube-apiserver ends one with too many of these.
const (
	givenUpMost    = 400
	givenUpTime    = time.Second
	tooManyGivenUp = "too many requests were given up before the upstream apiserver had answered"
)

func (l *limiter) mayGiveUp(user string) bool {
	if !l.queues.givenUp.Try(user, 1) {
		return false
	}
	l.queues.givenUp.Give(user, 1)
	return true
}

func (l *limiter) countGivenUp(user string) {
	if l.queues.givenUp.Try(user, 1) {
		time.AfterFunc(givenUpTime, func() { l.queues.givenUp.Give(user, 1) })
	}
}

// lasting reports whether a request has no time limit, and so does not count as in flight upstream.
func lasting(rt exchange.Route) bool {
	switch rt.Subresource {
	case "attach", "exec", "log", "portforward", "proxy":
		return true
	}
	return rt.Verb == "watch"
}

const (
	// fallbackReads and fallbackWatches limit the reads and watches that are forwarded at a time
	// because a cache is out of date. A watch with the state of many objects costs upstream
	// seconds. Requests above the limit wait for up to fallbackWait. If the cache may soon be up to
	// date, they ask it before, about once in a fallbackRound, and look for a slot in between.
	fallbackReads   = 64
	fallbackWatches = 32
	fallbackWait    = 10 * time.Second
	fallbackRound   = time.Second / 2
	fallbackLook    = time.Second / 20
	tooManyForwards = "too many requests wait for the upstream apiserver"
	// lostPatience is the maximum time for which a read waits for an upstream that feeds have lost.
	lostPatience = 5 * time.Second
)

// admitFallback waits for the slot of a read that falls back to upstream. A watch holds it while it
// is open.
func (l *limiter) admitFallback(
	ctx context.Context, req *exchange.Request, wait time.Duration,
) (leave func(), err error) {
	slots, user := l.fallbacks(req), req.User()
	if !slots.Try(user, 1) {
		ctx, stop := req.Attended(ctx)
		defer stop()
		ctx, cancel := context.WithTimeout(ctx, wait)
		defer cancel()
		if err := slots.Take(ctx, user, 1); err != nil {
			return nil, err
		}
	}
	return sync.OnceFunc(func() { slots.Give(user, 1) }), nil
}

func (l *limiter) fallbacks(req *exchange.Request) *fair.Pool {
	if req.Route.Verb == "watch" {
		return l.queues.fallbackWatches
	}
	return l.queues.fallbackReads
}

// lateMax limits the forwarded watches that begin before a cache's history. Upstream's usually goes
// back further, but a forwarded watch stays open for half an hour. A watch above the limit receives
// kube-apiserver's "too old resource version". Its client then lists again, from the cache.
const lateMax = 32

func (l *limiter) admitLate(req *exchange.Request) (leave func(), ok bool) {
	user := req.User()
	return func() { l.queues.late.Give(user, 1) }, l.queues.late.Try(user, 1)
}
