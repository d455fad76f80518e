package proxy

import (
	"errors"
	"io"
	"sync"
	"time"

	"github.com/watchproxy/watchproxy/proxy/exchange"
	"github.com/watchproxy/watchproxy/proxy/fair"
)

// unreadGrace is the time for which a client may leave a forwarded watch or log unread before it
// needs room in the workspace.
const unreadGrace = time.Second

// unreadAgain is the interval at which a client that still does not read may lose its room to others.
const unreadAgain = 10 * time.Second

// errUnread ends a response that its client does not read.
var errUnread = errors.New("the client does not read, and there is no room for the unread bytes")

// unread is the body of a forwarded response without a time limit. While the client does not read,
// upstream's transport fills up to a window of bytes. Without a claim to the workspace for them, one
// client could fill the memory with responses that it does not read. If there is no room, the
// response ends, and a watching client watches again.
//
// Invariant: the claim is held only while held is true. Only hold sets held, and only if it is false.
type unread struct {
	io.ReadCloser
	room   *fair.Workspace
	claim  fair.Claim
	timer  *time.Timer
	closed func() // called by the first Close
	mu     struct {
		sync.Mutex
		reading bool // the transport's bytes are being read
		held    bool // the claim is granted
		refused bool // there was no room
		done    bool // the body is closed
	}
}

// guardUnread returns a body whose unread bytes hold room in the workspace. closed is called when
// the body is closed.
func (s *Server) guardUnread(req *exchange.Request, body io.ReadCloser, closed func()) io.ReadCloser {
	u := &unread{ReadCloser: body, room: s.workspace, closed: closed}
	window := s.options.Load().Window
	u.claim = fair.Claim{User: req.User(), Size: window, Cost: window}
	u.timer = time.AfterFunc(unreadGrace, func() {
		if !u.hold() {
			s.metrics.Limited.WithLabelValues("unread").Inc()
			_ = u.ReadCloser.Close() // frees the window; the client is stuck in a write
		}
	})
	return u
}

// hold claims room unless the client reads meanwhile. It returns false if there is no room, or if the
// client has held room for unreadAgain and others have had to wait for room.
func (u *unread) hold() bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.mu.reading || u.mu.done {
		return true
	}
	if u.mu.held {
		u.mu.refused = u.room.Wanted()
	} else {
		u.mu.held = u.room.Try(u.claim)
		u.mu.refused = !u.mu.held
	}
	if u.mu.refused {
		u.giveLocked()
		return false
	}
	u.timer.Reset(unreadAgain)
	return true
}

// giveLocked gives the room back.
func (u *unread) giveLocked() {
	if u.mu.held {
		u.room.Give(u.claim.User, u.claim.Size)
		u.mu.held = false
	}
}

// Read implements io.Reader.
func (u *unread) Read(p []byte) (int, error) {
	u.mu.Lock()
	u.timer.Stop()
	u.mu.reading = true
	u.giveLocked()
	refused := u.mu.refused
	u.mu.Unlock()
	if refused {
		return 0, errUnread
	}
	n, err := u.ReadCloser.Read(p)
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.mu.reading = false; !u.mu.done {
		u.timer.Reset(unreadGrace)
	}
	return n, err
}

// Close implements io.Closer.
func (u *unread) Close() error {
	u.mu.Lock()
	u.timer.Stop()
	was := u.mu.done
	u.mu.done = true
	u.giveLocked()
	u.mu.Unlock()
	err := u.ReadCloser.Close()
	if !was {
		u.closed()
	}
	return err
}
