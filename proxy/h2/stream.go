package h2

import (
	"context"
	"strings"
	"sync"

	"golang.org/x/net/http2"

	"github.com/watchproxy/watchproxy/proxy/exchange"
	"github.com/watchproxy/watchproxy/proxy/fair"
	"github.com/watchproxy/watchproxy/proxy/watch"
)

// stream is one request and its response. A handler's goroutine works on it, or the pump.
type stream struct {
	c    *Conn
	id   uint32
	ctx  exchange.Context // ends when the client cancels
	body *upload          // nil if the request has none
	out  sender           // the response's data

	// The writer's lock guards the fields from here on.
	owed   int64 // received bytes not yet returned by WINDOW_UPDATE
	headed bool  // the response has begun
	done   bool  // the response has ended
	err    error // set if the stream ends before its response
}

func newStream(c *Conn, id uint32) *stream {
	s := &stream{c: c, id: id}
	s.out = sender{
		w:       c.writer,
		of:      s,
		stall:   c.server.Limits().Write,
		changed: sync.Cond{L: &c.writer.mu},
	}
	return s
}

// receive makes the stream take a body. If req is nil, nobody reads it.
func (s *stream) receive(req *exchange.Request) {
	s.body = newUpload(s.id, windowStream, s)
	if req == nil {
		_ = s.body.Fail(errClosed) // no bytes have arrived yet
		return
	}
	s.body.Declared = contentLength(req.Header)
	s.body.Expects = strings.EqualFold(req.Header.Get("Expect"), "100-continue")
	req.Body = &exchange.Body{
		From:   s.body,
		Client: s.body,
		Pause:  s.c.server.Limits().Read,
		Shared: true,
		Length: s.body.Declared,
	}
}

func (s *stream) giveBack(n int64, toStream bool) {
	if toStream {
		s.c.intake.giveBack(s, n)
	} else {
		s.c.intake.giveBack(nil, n)
	}
}

func (s *stream) endLocked(err error) {
	if s.err == nil {
		s.err = err
		s.ctx.End(s.c.running.Go)
		if s.body != nil {
			s.c.intake.giveBackLocked(nil, s.body.Fail(err))
		}
		s.out.changed.Broadcast()
	}
}

func (s *stream) close() {
	c := s.c
	s.ctx.End(c.running.Go)
	c.writer.mu.Lock()
	s.out.unread.End()
	if s.out.gathers {
		c.net.Gather(0)
	}
	last := c.streams.removeLocked(s)
	c.writer.unlock()
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
		s.c.intake.giveBack(nil, s.body.Fail(errClosed))
	}
}

// UnreadIn implements fair.Unread.
func (s *stream) UnreadIn() (*fair.Pool, string) { return s.c.net.Account.UnreadIn() }

// RefuseUnread implements fair.Unread. It resets the stream.
func (s *stream) RefuseUnread() { s.c.streams.reset(s.id, http2.ErrCodeCancel, watch.ErrStalled) }
