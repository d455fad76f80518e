package proxy

import (
	"errors"
	"io"
	"sync"

	"github.com/watchproxy/watchproxy/proxy/exchange"
	"github.com/watchproxy/watchproxy/proxy/fair"
)

var errUnread = errors.New("the client does not read, and there is no room for the unread bytes")

// unread is the body of a forwarded response without a time limit. While the client does not read,
// upstream's transport fills up to a window of bytes, which count as the user's memory: otherwise
// one client could fill the memory. Without room, the response ends, and a watch begins again.
type unread struct {
	io.ReadCloser
	of     *upstream
	req    *exchange.Request
	guard  *fair.Guard
	closed func() // called by the first Close
	mu     struct {
		sync.Mutex
		refused bool // there was no room
		done    bool // the body is closed
	}
}

// guardUnread returns a body whose unread bytes count. closed is called when it is closed.
func (u *upstream) guardUnread(
	req *exchange.Request, body io.ReadCloser, closed func(),
) io.ReadCloser {
	b := &unread{
		ReadCloser: body,
		of:         u,
		req:        req,
		closed:     closed,
	}
	b.guard = fair.NewGuard(u.options.Load().Window, b)
	b.guard.Begin()
	return b
}

// UnreadIn implements fair.Unread.
func (u *unread) UnreadIn() (*fair.Pool, string) { return u.of.limits.queues.unread, u.req.User() }

// RefuseUnread implements fair.Unread. It ends the body.
func (u *unread) RefuseUnread() {
	u.mu.Lock()
	u.guard.End()
	u.mu.refused = !u.mu.done
	refused := u.mu.refused
	u.mu.Unlock()
	if !refused {
		return // the body has ended
	}
	u.of.limits.metrics.Limited.WithLabelValues("unread").Inc()
	u.of.requests.logUnread(u.req)
	_ = u.ReadCloser.Close() // frees the window; a write waits for the client
}

func (u *unread) Read(p []byte) (int, error) {
	u.guard.End()
	u.mu.Lock()
	refused := u.mu.refused
	u.mu.Unlock()
	if refused {
		return 0, errUnread
	}
	n, err := u.ReadCloser.Read(p)
	u.mu.Lock()
	defer u.mu.Unlock()
	if !u.mu.done {
		u.guard.Begin()
	}
	return n, err
}

func (u *unread) Close() error {
	u.mu.Lock()
	was := u.mu.done
	u.mu.done = true
	u.guard.End()
	u.mu.Unlock()
	err := u.ReadCloser.Close()
	if !was {
		u.closed()
	}
	return err
}
