package h2

import (
	"cmp"
	"container/list"
	"context"
	"errors"
	"math"
	"strings"
	"sync"
	"time"

	"golang.org/x/net/http2"

	"github.com/watchproxy/watchproxy/proxy/exchange"
	"github.com/watchproxy/watchproxy/proxy/fair"
	"github.com/watchproxy/watchproxy/proxy/watch"
)

// stream is one request and its response.
type stream struct {
	c    *Conn
	id   uint32
	ctx  exchange.Context // ends when the client cancels
	body *upload          // nil if the request has none

	// The fields from here on are guarded by the connection's lock.
	window  int64
	owed    int64         // received bytes not yet returned by WINDOW_UPDATE
	headed  bool          // the response has begun
	done    bool          // the response has ended
	more    bool          // more bytes follow soon
	err     error         // set if the stream ends before its response
	stall   time.Duration // maximum time for which the client reads nothing; 0 means no limit
	changed sync.Cond     // signaled when the stream can go on, or has ended
	line    *list.List    // the connection's queue in which the stream waits, or nil
	place   *list.Element
	unsent  []byte      // bytes of a pumped watch that found no window
	least   int64       // the window that the stream waits for; 0 if it does not wait
	overdue *time.Timer // ends the wait for more window than there is
	gathers bool        // reads are gathered, because the client returns the window in small steps
	late    *time.Timer // resets the stream if it has unsent bytes or its writer waits for too long
	pumped  *watch.Watch
	out     *exchange.ChunkWriter
	state   state
	closed  func(reason string) // called at the end of a pumped watch
	unread  *fair.Guard         // of a watch
}

// begin starts the handler of a request, unless new streams are ignored meanwhile.
func (c *Conn) begin(id uint32, req *exchange.Request, ended bool) {
	s := &stream{c: c, id: id, stall: c.server.Options().Limits.Write, changed: sync.Cond{L: &c.mu}}
	c.mu.Lock()
	if c.mu.refusing { // since headers looked
		c.unlock()
		return
	}
	s.window = c.mu.initial
	c.mu.taken, c.mu.streams[id] = id, s // drained waits for all that it names
	c.unlock()
	if c.server.Serving.Err() != nil { // cut may have missed this stream
		s.ctx.End(c.running.Go)
	}
	switch {
	case ended:
	case req == nil:
		s.receive()
		_ = s.body.Fail(errClosed) // no bytes have arrived yet
	default:
		s.receive()
		s.body.Declared = contentLength(req.Header)
		s.body.Expects = strings.EqualFold(req.Header.Get("Expect"), "100-continue")
		req.Body = &exchange.Body{
			From:   s.body,
			Client: s.body,
			Pause:  c.server.Options().Limits.Read,
			Shared: true,
			Length: s.body.Declared,
		}
	}
	c.running.Go(func() { c.handle(s, req) })
}

// receive makes the stream take a body.
func (s *stream) receive() {
	s.body = newUpload(s.id, windowStream, func() { s.c.goOn(s) }, func(n int64, toStream bool) {
		if toStream {
			s.c.giveBack(s, n)
		} else {
			s.c.giveBack(nil, n)
		}
	})
}

// endLocked ends a stream whose response has not ended.
func (s *stream) endLocked(err error) {
	if s.err == nil {
		s.err = err
		s.ctx.End(s.c.running.Go)
		if s.body != nil {
			s.c.giveBackLocked(nil, s.body.Fail(err))
		}
		s.changed.Broadcast()
	}
}

// close removes a stream whose response has ended.
func (s *stream) close() {
	c := s.c
	s.ctx.End(c.running.Go)
	c.mu.Lock()
	s.unread.End()
	if s.gathers {
		c.net.Gather(0)
	}
	delete(c.mu.streams, s.id)
	if s.done {
		c.mu.done--
	}
	c.mu.idle = time.Now()
	last := c.mu.refusing && len(c.mu.streams) == 0
	c.unlock()
	s.Interrupt()
	if last {
		c.net.Interrupt()
	}
}

// CancelWhenGone implements exchange.Client.
func (s *stream) CancelWhenGone(gone context.CancelFunc) (stop func()) {
	unwatch := s.ctx.AfterFunc(gone)
	return func() { unwatch() }
}

// Interrupt implements exchange.Client.
func (s *stream) Interrupt() {
	if s.body != nil {
		s.c.giveBack(nil, s.body.Fail(errClosed))
	}
}

// Write implements io.Writer. It waits for the windows and for the connection.
func (s *stream) Write(p []byte) (n int, err error) {
	c := s.c
	for piece := 0; len(p) > 0; {
		c.mu.Lock()
		if err := s.awaitLocked(len(p)); err != nil {
			s.inTimeLocked()
			c.unlock()
			return n, err
		}
		for len(p) > 0 {
			m := c.appendDataLocked(s, p, bufferRoom-len(c.mu.buf))
			if m == 0 {
				break
			}
			p, n, piece = p[m:], n+m, piece+m
		}
		s.openedLocked()
		if len(p) == 0 || piece >= bufferMax { // the stall time starts again with each piece
			s.inTimeLocked()
			piece = 0
		}
		c.unlock()
		if len(p) > 0 || !s.more {
			c.flush()
		}
	}
	return n, nil
}

// awaitLocked waits for room in the buffer, and for a window in which to send some of the next left
// bytes, if there are any. If the client is too slow, the stream is reset. The time runs until
// inTimeLocked is called.
func (s *stream) awaitLocked(left int) error {
	c := s.c
	waited := false
	for s.err == nil && c.mu.err == nil {
		starves := s.starvesLocked(left)
		if !starves && len(c.mu.buf) < bufferRoom {
			break
		}
		// The client may need these frames before it opens a window.
		if len(c.mu.buf) > 0 && !c.mu.writing {
			c.mu.writing = true
			c.write(true)
			c.mu.Lock()
			continue
		}
		if s.late == nil {
			s.late = s.stalls()
		}
		c.passLocked()
		switch {
		case !starves:
			s.lineUpLocked(&c.mu.forRoom, waited)
		case s.window >= s.least:
			s.lineUpLocked(&c.mu.forWindow, waited)
		}
		s.changed.Wait()
		s.leaveLocked()
		waited = true
	}
	return errors.Join(s.err, c.mu.err)
}

// starvesLocked reports whether the stream has to wait for a window before it sends some of the next
// left bytes. Once a window is used up, the stream waits until a frame is worth its cost, but only for
// a moment if there is some window again. Otherwise a client that returns 4 KiB at a time, as Go's
// does, would get each of them in a write of its own.
func (s *stream) starvesLocked(left int) bool {
	c := s.c
	window := min(s.window, c.mu.window)
	if left == 0 || s.least == 0 && window > 0 {
		return false
	}
	if s.least == 0 {
		s.least = least(left, c.mu.initial, c.mu.widest)
	}
	if window >= s.least {
		return false
	}
	if s.overdue == nil {
		s.overdue = time.AfterFunc(overdueAfter, s.relent)
	}
	return true
}

// relent lets a stream send into any window.
func (s *stream) relent() {
	s.c.mu.Lock()
	defer s.c.unlock()
	if s.overdue != nil {
		s.least = 1
		s.leaveLocked()
		s.wakeLocked()
	}
}

// openedLocked must be called after a stream has sent bytes.
func (s *stream) openedLocked() {
	s.least = 0
	if s.overdue != nil {
		s.overdue.Stop()
		s.overdue = nil
	}
}

func (s *stream) inTimeLocked() {
	s.openedLocked()
	if s.late != nil {
		s.late.Stop()
		s.late = nil
	}
	s.unread.End()
}

// lineUpLocked puts the stream into a queue. A stream that was woken but still lacks room goes to
// the front.
func (s *stream) lineUpLocked(line *list.List, front bool) {
	s.line = line
	if front {
		s.place = line.PushFront(s)
	} else {
		s.place = line.PushBack(s)
	}
}

func (s *stream) leaveLocked() {
	if s.place != nil {
		s.line.Remove(s.place)
		s.line, s.place = nil, nil
	}
}

// fedLocked must be called when the stream's own window has grown.
func (s *stream) fedLocked() {
	switch {
	case s.window < s.least:
		if min(s.c.mu.initial, s.c.mu.widest) >= gatherLeast {
			s.c.net.Gather(gatherFor) // the client returns its window in small steps
			s.gathers = true
		}
	case len(s.unsent) > 0:
		s.wakeLocked()
	default:
		s.changed.Broadcast()
	}
}

// stalls returns a timer that resets the stream if the client is too slow.
func (s *stream) stalls() *time.Timer {
	s.unread.Begin()
	return time.AfterFunc(cmp.Or(s.stall, math.MaxInt64), s.stalled)
}

func (s *stream) stalled() { s.c.resetFor(s.id, http2.ErrCodeCancel, watch.ErrStalled) }

// leastMost limits least, in bytes.
const leastMost = 64 << 10

// least returns the window from which it is worth to send, for a sender that has left bytes to send
// (RFC 9293, 3.8.6.2.1). stream and conn are the windows that the client gives a stream and its
// connection when it has read everything. A client may give window back only when half of it is
// used, so half of a window must be enough.
func least(left int, stream, conn int64) int64 {
	return max(1, min(int64(left), leastMost, stream/2, conn/2))
}
