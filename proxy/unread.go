package proxy

import (
	"io"
	"sync"
	"time"

	"github.com/watchproxy/watchproxy/proxy/exchange"
	"github.com/watchproxy/watchproxy/proxy/fair"
)

// unreadGrace is the time for which a client may leave a forwarded watch unread before it needs room
// in the workspace.
const unreadGrace = time.Second

// unread is the body of a forwarded watch. While the client does not read, upstream's transport
// fills up to a window of events. Without a claim to the workspace for it, one client could fill the
// memory with watches that it does not read. If there is no room, the watch ends, and its client
// watches again.
type unread struct {
	io.ReadCloser
	room  *fair.Workspace
	claim fair.Claim
	timer *time.Timer
	mu    struct {
		sync.Mutex
		reading bool // the transport's bytes are being read, or the body is closed
		held    bool // the claim is granted
	}
}

// guardUnread returns a watch's body whose unread bytes hold room in the workspace. end ends the watch.
func (s *Server) guardUnread(req *exchange.Request, body io.ReadCloser, end func()) io.ReadCloser {
	u := &unread{ReadCloser: body, room: s.workspace}
	window := s.options.Load().Window
	u.claim = fair.Claim{User: req.User(), Size: window, Cost: window}
	u.timer = time.AfterFunc(unreadGrace, func() {
		if !u.hold() {
			s.metrics.Limited.WithLabelValues("unread").Inc()
			end()
		}
	})
	return u
}

// hold claims room unless the client reads meanwhile. It returns false if there is no room.
func (u *unread) hold() bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	if !u.mu.reading {
		u.mu.held = u.room.Try(u.claim)
		return u.mu.held
	}
	return true
}

// reads says whether the client reads, or needs no further bytes. It gives the room back.
func (u *unread) reads(reading bool) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.mu.reading = reading
	if reading && u.mu.held {
		u.room.Give(u.claim.User, u.claim.Size)
		u.mu.held = false
	}
}

// Read implements io.Reader.
func (u *unread) Read(p []byte) (int, error) {
	u.timer.Stop()
	u.reads(true)
	n, err := u.ReadCloser.Read(p)
	u.reads(false)
	u.timer.Reset(unreadGrace)
	return n, err
}

// Close implements io.Closer.
func (u *unread) Close() error {
	u.timer.Stop()
	u.reads(true)
	return u.ReadCloser.Close()
}
