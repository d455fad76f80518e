package h2

import (
	"context"
	"errors"
	"io"
	"os"
	"sync"
	"time"

	"golang.org/x/net/http2"

	"github.com/watchproxy/watchproxy/proxy/exchange"
	"github.com/watchproxy/watchproxy/proxy/watch"
)

// stream is one request and its answer.
type stream struct {
	c      *Conn
	id     uint32
	ctx    context.Context //nolint:containedctx // ends when the client cancels
	cancel context.CancelFunc
	body   *body // nil if there is none

	// Guarded by the connection's lock.
	window int64
	owed   int64         // what was received and not yet given back
	headed bool          // the answer has begun
	err    error         // the stream ended before its answer did
	stall  time.Duration // how long it may be left unread; 0 for any time
	stuck  []byte        // what a pumped watch has written and there was no window for
	late   *time.Timer   // cuts a stream that is stuck
	pumped *watch.Watch
	out    *exchange.ChunkWriter
	state  state
	closed func() // called at the end of a pumped watch
}

// begin starts the handler of a request.
func (c *Conn) begin(id uint32, req *exchange.Request, ended bool) {
	s := &stream{c: c, id: id}
	s.ctx, s.cancel = context.WithCancel(c.ctx)
	if req != nil {
		req.Client = s
	}
	c.mu.Lock()
	s.window = c.mu.initial
	c.mu.streams[id] = s
	c.mu.handlers++
	c.mu.Unlock()
	if !ended {
		s.body = newBody(s)
		s.body.declared = contentLength(req.Header)
		s.body.expects = req.Header.Get("Expect") != ""
		req.Body = &exchange.Body{From: s.body, Length: s.body.declared}
		req.Body.Extend = func() { s.body.deadline(req.Body.Deadline(c.server.Options().Limits.Read)) }
		req.Body.Suspend = func() { s.body.deadline(time.Time{}) }
	}
	c.running.Go(func() { c.handle(s, req) })
}

// endLocked ends a stream before its answer has.
func (s *stream) endLocked(err error) {
	if s.err == nil {
		s.err = err
		s.cancel()
		if s.body != nil {
			s.body.fail(err)
		}
		s.c.mu.changed.Broadcast()
	}
}

// close forgets a stream whose answer has ended.
func (s *stream) close() {
	s.cancel()
	s.c.mu.Lock()
	delete(s.c.mu.streams, s.id)
	s.c.mu.idle = time.Now()
	last := s.c.mu.refusing && len(s.c.mu.streams) == 0
	s.c.mu.Unlock()
	if s.body != nil {
		s.body.fail(errClosed)
	}
	if last {
		s.c.net.Interrupt()
	}
}

// CancelWhenGone implements exchange.Client.
func (s *stream) CancelWhenGone(gone context.CancelFunc) (stop func()) {
	unwatch := context.AfterFunc(s.ctx, gone)
	return func() { unwatch() }
}

// Interrupt implements exchange.Client.
func (s *stream) Interrupt() {
	if s.body != nil {
		s.body.fail(errClosed)
	}
}

// Write implements io.Writer: it waits for the windows and for the connection.
func (s *stream) Write(p []byte) (n int, err error) {
	c := s.c
	for len(p) > 0 {
		c.mu.Lock()
		if err := s.awaitLocked(true); err != nil {
			c.mu.Unlock()
			return n, err
		}
		for len(p) > 0 {
			m := c.appendDataLocked(s, p, bufferMax-frameHead-len(c.mu.buf))
			if m == 0 {
				break
			}
			p, n = p[m:], n+m
		}
		c.mu.Unlock()
		c.flush()
	}
	return n, nil
}

// awaitLocked waits until there is room in the buffer, and a window if one is needed. A client that
// takes too long loses the stream.
func (s *stream) awaitLocked(window bool) error {
	c := s.c
	var late *time.Timer
	for s.err == nil && c.mu.err == nil &&
		(len(c.mu.buf) >= bufferMax-frameHead || window && min(s.window, c.mu.window) <= 0) {
		if len(c.mu.buf) > 0 && !c.mu.writing { // the client may wait for this
			c.mu.writing = true
			c.write(true)
			c.mu.Lock()
			continue
		}
		if late == nil && s.stall > 0 {
			late = s.stalls()
		}
		c.mu.changed.Wait()
	}
	if late != nil {
		late.Stop()
	}
	return errors.Join(s.err, c.mu.err)
}

// body is a request's body as it arrives.
type body struct {
	s        *stream
	declared int64 // its length, -1 if it is unknown
	expects  bool  // the client waits to be asked for it
	mu       struct {
		sync.Mutex
		changed *sync.Cond
		data    []byte
		window  int64
		ended   bool
		got     int64
		err     error
		late    *time.Timer
	}
}

func newBody(s *stream) *body {
	b := &body{s: s}
	b.mu.changed = sync.NewCond(&b.mu)
	b.mu.window = windowStream
	return b
}

func (b *body) ended() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.mu.ended
}

func (b *body) add(p []byte, end bool, size int64) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.mu.window -= size; b.mu.window < 0 {
		return http2.StreamError{StreamID: b.s.id, Code: http2.ErrCodeFlowControl}
	}
	b.mu.window += size - int64(len(p)) // padding was given back
	if b.mu.err == nil {
		b.mu.data = append(b.mu.data, p...)
	} else {
		b.s.c.running.Go(func() { b.s.c.giveBack(nil, int64(len(p))) })
	}
	b.mu.got += int64(len(p))
	if b.declared >= 0 && (b.mu.got > b.declared || end && b.mu.got < b.declared) {
		return http2.StreamError{StreamID: b.s.id, Code: http2.ErrCodeProtocol}
	}
	b.mu.ended = b.mu.ended || end
	b.mu.changed.Broadcast()
	return nil
}

func (b *body) fail(err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.mu.err == nil {
		b.mu.err = err
	}
	if b.mu.late != nil {
		b.mu.late.Stop()
	}
	if n := int64(len(b.mu.data)); n > 0 {
		b.mu.data = nil
		b.s.c.running.Go(func() { b.s.c.giveBack(nil, n) })
	}
	b.mu.changed.Broadcast()
}

func (b *body) deadline(t time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.mu.late != nil {
		b.mu.late.Stop()
		b.mu.late = nil
	}
	if !t.IsZero() {
		b.mu.late = time.AfterFunc(time.Until(t), func() { b.fail(os.ErrDeadlineExceeded) })
	}
}

// Read implements io.Reader.
func (b *body) Read(p []byte) (int, error) {
	if b.expects {
		b.expects = false
		b.s.c.goOn(b.s)
	}
	b.mu.Lock()
	for len(b.mu.data) == 0 && !b.mu.ended && b.mu.err == nil {
		b.mu.changed.Wait()
	}
	if len(b.mu.data) == 0 {
		defer b.mu.Unlock()
		if b.mu.err != nil {
			return 0, b.mu.err
		}
		return 0, io.EOF
	}
	n := copy(p, b.mu.data)
	if b.mu.data = b.mu.data[n:]; len(b.mu.data) == 0 {
		b.mu.data = nil
	}
	b.mu.window += int64(n)
	ended := b.mu.ended
	b.mu.Unlock()
	if ended {
		b.s.c.giveBack(nil, int64(n))
	} else {
		b.s.c.giveBack(b.s, int64(n))
	}
	return n, nil
}

// stalls resets the stream if the client takes too long.
func (s *stream) stalls() *time.Timer {
	return time.AfterFunc(s.stall, func() { s.c.reset(s.id, http2.ErrCodeCancel) })
}
