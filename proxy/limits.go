package proxy

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/watchproxy/watchproxy/proxy/exchange"
	"github.com/watchproxy/watchproxy/proxy/fair"
	"github.com/watchproxy/watchproxy/proxy/metrics"
)

// perUserCounts count what users have open, and forget who has nothing open.
type perUserCounts struct {
	mu struct {
		sync.Mutex
		held map[string]int
	}
}

// take counts one more unless that would be more than most.
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

// limiter refuses what is beyond a limit of its client.
type limiter struct {
	limits  func() exchange.Limits
	metrics *metrics.Metrics
	// What users have open.
	connections, watches perUserCounts
}

// admit refuses a request that is beyond a limit of its client.
func (l *limiter) admit(req *exchange.Request) (refusal *exchange.Response) {
	name := req.User()
	if req.Conn.Crowded() {
		return l.tooMany(req, "connections", "too many connections are open")
	}
	if !req.Conn.HoldAs(name, func() (func(), bool) { return l.connections.take(name, l.limits().UserConnections) }) {
		return l.tooMany(req, "user_connections", fmt.Sprintf("user %q has too many connections open", name))
	}
	return nil
}

// AdmitWatch implements read.Limiter. It counts an open watch of the request's user.
func (l *limiter) AdmitWatch(req *exchange.Request) (done func(), refusal *exchange.Response) {
	name := req.User()
	done, ok := l.watches.take(name, l.limits().UserWatches)
	if !ok {
		return nil, l.tooMany(req, "user_watches", fmt.Sprintf("user %q has too many watches open", name))
	}
	return done, nil
}

// tooMany says that a client has enough, and should come back later.
func (l *limiter) tooMany(req *exchange.Request, limit, message string) *exchange.Response {
	l.metrics.Limited.WithLabelValues(limit).Inc()
	st := exchange.Failure(http.StatusTooManyRequests, metav1.StatusReasonTooManyRequests, message+", please try again later")
	st.Details = &metav1.StatusDetails{RetryAfterSeconds: 1}
	resp := req.Fail(st, exchange.FromProxy)
	resp.Close = limit == "connections" || limit == "user_connections"
	return resp
}

// GaveUp implements read.Limiter. It answers a request that has waited in vain.
func (l *limiter) GaveUp(req *exchange.Request, err error, limit, message string) *exchange.Response {
	if errors.Is(err, context.Canceled) {
		return exchange.ClientGone()
	}
	return l.tooMany(req, limit, message)
}

// admitForward waits for one of the places upstream, as long as the client has patience: upstream
// knows the user and queues by itself. A request is refused only if the memory for those that wait
// is gone. A user has half of the places at most, so that others get through whatever it does.
func (s *Server) admitForward(ctx context.Context, req *exchange.Request, rt exchange.Route) (done func(), refusal *exchange.Response) {
	if lasting(rt) {
		return s.limits.AdmitWatch(req) // it takes no place, but memory for as long as it lasts
	}
	user := req.User()
	w, err := s.places.Enter(fair.Claim{User: user, Size: 1, Cost: 1, Held: req.Held()})
	if w != nil {
		req.Body.ReadAhead()
		ctx, stop := req.Attended(ctx)
		err = s.places.Wait(ctx, w)
		stop()
	}
	if err != nil {
		return nil, s.limits.GaveUp(req, err, "forwards", "too many requests wait for the upstream apiserver")
	}
	return sync.OnceFunc(func() { s.places.Give(user, 1) }), nil
}

// lasting tells requests that may go on for as long as they like, for upstream as
// well: they do not count as in flight. Nor do others that upstream has upgraded.
func lasting(rt exchange.Route) bool {
	switch rt.Subresource {
	case "attach", "exec", "log", "portforward", "proxy":
		return true
	}
	return rt.Verb == "watch"
}
