package h2

import (
	"cmp"
	"container/list"
	"errors"
	"math"
	"sync"
	"time"

	"github.com/watchproxy/watchproxy/proxy/fair"
)

// sender sends the data of a stream's response, as far as the client's windows and the writer's
// buffer allow. The writer's lock guards its fields.
type sender struct {
	w       *writer
	of      *stream
	more    bool      // more bytes follow soon
	changed sync.Cond // signaled when the stream can go on, or has ended
	watch   *pumped   // nil unless the pump writes the data

	window  int64         // the client's window for the stream
	least   int64         // the window that the stream waits for; 0 if it does not wait
	overdue *time.Timer   // ends the wait for more window than there is
	gathers bool          // the client returns the window in small steps, so reads are gathered
	line    *list.List    // the queue in which the stream waits, or nil
	place   *list.Element // in it

	stall  time.Duration // maximum time for which the client reads nothing; 0 means no limit
	late   *time.Timer   // resets the stream if its bytes wait for too long
	unread *fair.Guard   // of a watch
}

// Write implements io.Writer. It waits for the windows and for the connection.
func (s *sender) Write(p []byte) (n int, err error) {
	w := s.w
	for piece := 0; len(p) > 0; {
		w.mu.Lock()
		if err := s.awaitLocked(len(p)); err != nil {
			s.inTimeLocked()
			w.unlock()
			return n, err
		}
		for len(p) > 0 {
			m := s.appendLocked(p, bufferRoom-len(w.mu.buf))
			if m == 0 {
				break
			}
			p, n, piece = p[m:], n+m, piece+m
		}
		s.sentLocked()
		if len(p) == 0 || piece >= bufferMax { // the stall time starts again with each piece
			s.inTimeLocked()
			piece = 0
		}
		w.unlock()
		if len(p) > 0 || !s.more {
			w.flush()
		}
	}
	return n, nil
}

// appendLocked appends a DATA frame with as many bytes of p as the windows and most allow.
func (s *sender) appendLocked(p []byte, most int) (n int) {
	w, peer := s.w, &s.w.mu.peer
	n = int(min(int64(len(p)), int64(most), s.window, peer.window, int64(peer.frameMax)))
	if n <= 0 {
		return 0
	}
	s.window -= int64(n)
	peer.window -= int64(n)
	w.mu.buf = appendData(w.bufLocked(), s.of.id, p[:n])
	return n
}

// awaitLocked waits for room in the buffer, and for a window in which to send some of the next left
// bytes, if there are any. If the client is too slow, the stream is reset. The time runs until
// inTimeLocked is called. The lock is released meanwhile.
func (s *sender) awaitLocked(left int) error {
	w := s.w
	waited := false
	for s.of.err == nil && w.mu.err == nil {
		starves := s.starvesLocked(left)
		if !starves && len(w.mu.buf) < bufferRoom {
			break
		}
		// The client may need these frames before it opens a window.
		if len(w.mu.buf) > 0 && !w.mu.writing {
			w.mu.writing = true
			w.writeAndUnlock(true)
			w.mu.Lock()
			continue
		}
		if s.late == nil {
			s.startStallLocked()
		}
		w.passLocked()
		switch {
		case !starves:
			s.lineUpLocked(&w.mu.turns.forRoom, waited)
		case s.window >= s.least:
			s.lineUpLocked(&w.mu.turns.forWindow, waited)
		}
		s.changed.Wait()
		s.leaveLocked()
		waited = true
	}
	return errors.Join(s.of.err, w.mu.err)
}

// starvesLocked reports whether the stream has to wait for a window before it sends some of the
// next left bytes. The package doc says when a window is enough.
func (s *sender) starvesLocked(left int) bool {
	peer := &s.w.mu.peer
	window := min(s.window, peer.window)
	if left == 0 || s.least == 0 && window > 0 {
		return false
	}
	if s.least == 0 {
		s.least = peer.least(left)
	}
	if window >= s.least {
		return false
	}
	if s.overdue == nil {
		s.overdue = time.AfterFunc(overdueAfter, s.relent)
	}
	return true
}

func (s *sender) relent() {
	s.w.mu.Lock()
	defer s.w.unlock()
	if s.overdue != nil {
		s.least = 1
		s.leaveLocked()
		s.wakeLocked()
	}
}

// sentLocked must be called after bytes were sent.
func (s *sender) sentLocked() {
	s.least = 0
	if s.overdue != nil {
		s.overdue.Stop()
		s.overdue = nil
	}
}

func (s *sender) startStallLocked() {
	s.unread.Begin()
	s.late = time.AfterFunc(cmp.Or(s.stall, math.MaxInt64), s.of.RefuseUnread)
}

func (s *sender) inTimeLocked() {
	s.sentLocked()
	if s.late != nil {
		s.late.Stop()
		s.late = nil
	}
	s.unread.End()
}

// lineUpLocked queues the stream, at the front if it was woken but still lacks room.
func (s *sender) lineUpLocked(line *list.List, front bool) {
	s.line = line
	if front {
		s.place = line.PushFront(s)
	} else {
		s.place = line.PushBack(s)
	}
}

// parkLocked queues a stream that starves for the connection's window.
func (s *sender) parkLocked(front bool) {
	if s.window >= s.least && s.place == nil { // the stream's own window is open
		s.lineUpLocked(&s.w.mu.turns.forWindow, front)
	}
}

func (s *sender) leaveLocked() {
	if s.place != nil {
		s.line.Remove(s.place)
		s.line, s.place = nil, nil
	}
}

// fedLocked must be called when the stream's own window has grown.
func (s *sender) fedLocked() {
	peer := &s.w.mu.peer
	switch {
	case s.window < s.least:
		if min(peer.initial, peer.widest) >= gatherLeast {
			s.w.net.Gather(gatherFor) // the client returns its window in small steps
			s.gathers = true
		}
	case s.watch != nil && len(s.watch.unsent) > 0:
		s.wakeLocked()
	default:
		s.changed.Broadcast()
	}
}

func (s *sender) wakeLocked() {
	s.changed.Broadcast()
	if s.watch != nil {
		s.watch.wakeLocked()
	}
}
