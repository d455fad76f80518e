package proxy

import (
	"context"
	"fmt"
	"math"
	"net/http"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
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
	// that last: watches, logs, exec.
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
	name := req.identity.name()
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
	name := req.identity.name()
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
	resp.close = limit != "user_watches" && limit != "forwards"
	return resp
}

// admitForward waits for one of the places upstream. A user has half of them at most,
// those that it waits for included, so that others get through whatever it does.
func (s *Server) admitForward(ctx context.Context, req *request, rt route) (done func(), refusal *response) {
	if lasting(rt) {
		return func() {}, nil
	}
	name, most := req.identity.name(), math.MaxInt
	if req.identity != nil {
		most = max(1, s.options.Load().Limits.Forwards/2)
	}
	mine, ok := s.forwarding.take(name, most)
	if !ok {
		return nil, s.tooMany(req, "forwards", fmt.Sprintf("too many requests of user %q wait for the upstream apiserver", name))
	}
	ctx, cancel := context.WithTimeout(ctx, forwardWait)
	defer cancel()
	select {
	case s.places <- struct{}{}:
		return joined(mine, func() { <-s.places }), nil
	case <-ctx.Done():
		mine()
		return nil, s.tooMany(req, "forwards", "too many requests wait for the upstream apiserver")
	}
}

// forwardWait is how long a request waits for its turn upstream.
const forwardWait = 10 * time.Second

// lasting tells requests that may go on for as long as they like, for upstream as
// well: they do not count as in flight. Nor do others that upstream has upgraded.
func lasting(rt route) bool {
	switch rt.subresource {
	case "attach", "exec", "log", "portforward", "proxy":
		return true
	}
	return rt.verb == "watch"
}
