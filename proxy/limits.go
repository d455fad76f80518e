package proxy

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/watchproxy/watchproxy/proxy/fair"
)

// Limits bound what clients may take.
type Limits struct {
	// HeaderBytes bounds the request line and headers, URIBytes the path and query,
	// BodyBytes the body of a forwarded request.
	HeaderBytes, URIBytes int
	BodyBytes             int64
	// Read bounds the time in which headers arrive, and pauses within a body; Write
	// how long a part of an answer stays unread; Idle the time between requests.
	Read, Write, Idle time.Duration
	// Connections of all clients, and what a user may have open.
	Connections, UserConnections, UserWatches int
	// Descriptors bounds the connections as well, those that are told so included; 0 for no
	// bound.
	Descriptors int
	// Forwards are the forwarded requests that upstream has at a time, without those
	// that last: watches, logs, exec. Further ones wait for their user's turn.
	Forwards int
}

// holdings count what users have open, and forget who has nothing open.
type holdings struct {
	mu struct {
		sync.Mutex
		held map[string]int
	}
}

// take counts one more unless that would be more than most.
func (h *holdings) take(name string, most int) (giveBack func(), ok bool) {
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

// admit refuses a request that is beyond a limit of its client.
func (s *Server) admit(req *request) (refusal *response) {
	name := req.User()
	if req.conn.crowded.Load() {
		return s.tooMany(req, "connections", "too many connections are open")
	}
	if !req.conn.holdAs(name, func() (func(), bool) { return s.connections.take(name, s.options.Load().Limits.UserConnections) }) {
		return s.tooMany(req, "user_connections", fmt.Sprintf("user %q has too many connections open", name))
	}
	return nil
}

// admitWatch counts an open watch of the request's user.
func (s *Server) admitWatch(req *request) (done func(), refusal *response) {
	name := req.User()
	done, ok := s.watches.take(name, s.options.Load().Limits.UserWatches)
	if !ok {
		return nil, s.tooMany(req, "user_watches", fmt.Sprintf("user %q has too many watches open", name))
	}
	return done, nil
}

// tooMany says that a client has enough, and should come back later.
func (s *Server) tooMany(req *request, limit, message string) *response {
	s.metrics.limited.WithLabelValues(limit).Inc()
	st := failure(http.StatusTooManyRequests, metav1.StatusReasonTooManyRequests, message+", please try again later")
	st.Details = &metav1.StatusDetails{RetryAfterSeconds: 1}
	resp := req.fail(st, fromProxy)
	resp.close = limit == "connections" || limit == "user_connections"
	return resp
}

// gaveUp answers a request that has waited in vain.
func (s *Server) gaveUp(req *request, err error, limit, message string) *response {
	if errors.Is(err, context.Canceled) {
		return clientGone()
	}
	return s.tooMany(req, limit, message)
}

// admitForward waits for one of the places upstream, as long as the client has patience: upstream
// knows the user and queues by itself. A request is refused only if the memory for those that wait
// is gone. A user has half of the places at most, so that others get through whatever it does.
func (s *Server) admitForward(ctx context.Context, req *request, rt route) (done func(), refusal *response) {
	if lasting(rt) {
		return s.admitWatch(req) // it takes no place, but memory for as long as it lasts
	}
	user := req.User()
	w, err := s.places.Enter(fair.Claim{User: user, Size: 1, Cost: 1, Held: req.Held()})
	if w != nil {
		req.body.readAhead()
		ctx, stop := req.Attended(ctx)
		err = s.places.Wait(ctx, w)
		stop()
	}
	if err != nil {
		return nil, s.gaveUp(req, err, "forwards", "too many requests wait for the upstream apiserver")
	}
	return sync.OnceFunc(func() { s.places.Give(user, 1) }), nil
}

// Attended returns a context that ends when the client leaves or its patience does. Stop must be
// called before the client's connection is read again.
func (r *request) Attended(ctx context.Context) (_ context.Context, stop func()) {
	ctx, cancel := context.WithTimeout(ctx, r.waits())
	if r.client == nil || r.body != nil && (r.body.length < 0 || r.body.length >= aheadMax) {
		return ctx, cancel // what is read ahead of the handler is bounded
	}
	unwatch := r.client.whenGone(cancel)
	return ctx, func() {
		unwatch()
		cancel()
	}
}

// waits is how long a request waits for its turn: requestWait, or less if the client gives up
// before.
func (r *request) waits() time.Duration {
	if strings.Contains(r.query, "timeout=") {
		values, _ := url.ParseQuery(r.query) // what can be read of it
		if bound, err := time.ParseDuration(values.Get("timeout")); err == nil && bound > 0 {
			return min(bound, requestWait)
		}
	}
	return requestWait
}

// Held is about how much memory a request takes while it waits, in bytes: its goroutine, what it
// was read into, its headers twice (as they came and as strings), and what is there of its body.
func (r *request) Held() int64 {
	const fixed, each = 8 << 10, 64
	held := len(r.target)
	for name, values := range r.header {
		held += len(name) + each
		for _, v := range values {
			held += len(v)
		}
	}
	held = fixed + 2*held
	switch {
	case r.body == nil:
	case r.body.length < 0:
		held += bodyAhead
	default:
		held += int(min(r.body.length, bodyAhead))
	}
	return int64(held)
}

// lasting tells requests that may go on for as long as they like, for upstream as
// well: they do not count as in flight. Nor do others that upstream has upgraded.
func lasting(rt route) bool {
	switch rt.subresource {
	case "attach", "exec", "log", "portforward", "proxy":
		return true
	}
	return rt.verb == "watch"
}

// requestWait is how long a request waits for its turn at most: kube-apiserver gives a request up
// after that long.
const requestWait = time.Minute
