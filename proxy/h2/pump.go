package h2

import (
	"errors"
	"runtime/debug"

	"go.uber.org/zap"

	"github.com/watchproxy/watchproxy/proxy/watch"
)

// state says whether a pumped watch has work. The connection's lock guards it.
type state uint8

const (
	resting state = iota // no work
	queued               // among the connection's ready streams
	working              // a goroutine works on it
	again                // a goroutine works on it, and there is more to do
	gone                 // the pump leaves it alone
)

// ready has the pump look at a stream. It does not block for long.
func (s *stream) ready() {
	s.c.mu.Lock()
	s.wakeLocked()
	s.c.unlock()
}

// wakeLocked wakes the handler that waits for the stream, or has the pump look at it.
func (s *stream) wakeLocked() {
	s.changed.Broadcast()
	switch {
	case s.pumped == nil:
	case s.state == resting:
		s.state = queued
		s.c.mu.ready = append(s.c.mu.ready, s)
		s.c.queueLocked()
	case s.state == working:
		s.state = again
	}
}

// queueLocked queues the connection if it has work for the pump. If there is a writer, the writer
// does this after its write.
func (c *Conn) queueLocked() {
	if len(c.mu.ready) > 0 && !c.mu.queued && !c.mu.writing {
		c.mu.queued = true
		c.server.pump.Add(c)
	}
}

// Work implements watch.Worker. It writes the events of all ready watches together, without waiting
// for the client.
func (c *Conn) Work(scratch *watch.Scratch) {
	c.mu.Lock()
	c.mu.queued = false
	if c.mu.writing { // the writer queues the connection again
		c.unlock()
		return
	}
	c.mu.writing = true
	c.turnsLocked(scratch)
	c.write(false)
}

// turnsLocked lets ready watches append events until the buffer is full. Only the writer calls it.
func (c *Conn) turnsLocked(scratch *watch.Scratch) {
	for len(c.mu.ready) > 0 && len(c.mu.buf) < bufferMax {
		s := c.mu.ready[0]
		if c.mu.ready = c.mu.ready[1:]; len(c.mu.ready) == 0 {
			c.mu.ready = nil
		}
		if !s.unstickLocked() {
			s.state = resting
			continue
		}
		s.state = working
		c.unlock()
		on, behind := s.turn(scratch)
		c.mu.Lock()
		switch {
		case !on:
			s.state = gone
			c.running.Go(s.over)
		case behind && len(s.stuck) == 0:
			s.state = gone // the pump leaves it to catchUp
			c.running.Go(s.catchUp)
		case s.state == again:
			s.state = queued
			c.mu.ready = append(c.mu.ready, s)
		default:
			s.state = resting // until there is an event, or a window
		}
	}
}

// unstickLocked appends stuck bytes, for which there was no window. It returns false if some are
// still stuck.
func (s *stream) unstickLocked() bool {
	if len(s.stuck) == 0 {
		return true
	}
	for len(s.stuck) > 0 && s.err == nil {
		n := s.c.appendDataLocked(s, s.stuck, bufferMax)
		if s.stuck = s.stuck[n:]; n == 0 {
			if s.ctx.Err() != nil {
				break
			}
			s.parkLocked(true)
			return false
		}
	}
	s.unstuckLocked()
	return true
}

// parkLocked has the stream woken when there is a window.
func (s *stream) parkLocked(again bool) {
	if s.window > 0 && s.place == nil { // only the connection's window is empty
		s.lineUpLocked(&s.c.mu.forWindow, again)
	}
}

// unstuckLocked returns the stuck bytes and forgets them.
func (s *stream) unstuckLocked() (rest []byte) {
	rest, s.stuck = s.stuck, nil
	s.inTimeLocked()
	s.leaveLocked()
	return rest
}

func (s *stream) turn(scratch *watch.Scratch) (on, behind bool) {
	defer func() {
		if p := recover(); p != nil {
			s.c.server.Log.Error("panic in a watch", zap.Any("panic", p), zap.ByteString("stack", debug.Stack()))
			on = false
		}
	}()
	return s.pumped.Turn(&s.ctx, s.out, scratch)
}

// catchUp works on a watch at the client's speed until there is nothing more to do.
func (s *stream) catchUp() {
	s.out.To = s
	for {
		on, behind := s.turn(nil)
		if !on {
			s.over()
			return
		}
		if !behind {
			break
		}
	}
	s.out.To = (*eager)(s)
	s.c.mu.Lock()
	s.state = resting
	s.c.unlock()
	s.ready()
}

// over ends a pumped watch.
func (s *stream) over() {
	defer s.c.running.Done()
	s.out.To = s
	s.pumped.Close()
	s.closed()
	s.c.mu.Lock()
	rest := s.unstuckLocked()
	s.c.unlock()
	_, _ = s.Write(rest) // finish ignores a stream that has ended
	s.c.finish(s)
	s.close()
}

// eager writes without waiting for the client. Bytes for which there is no window become stuck.
type eager stream

// Write implements io.Writer.
func (e *eager) Write(p []byte) (int, error) {
	s := (*stream)(e)
	c := s.c
	c.mu.Lock()
	defer c.unlock()
	if err := errors.Join(s.err, c.mu.err); err != nil {
		return 0, err
	}
	n := len(p)
	for len(p) > 0 && len(s.stuck) == 0 {
		m := c.appendDataLocked(s, p, bufferMax)
		if m == 0 {
			break
		}
		p = p[m:]
	}
	if len(p) > 0 && len(s.stuck) == 0 { // a window may come before the turn ends
		s.late = s.stalls()
		s.parkLocked(false)
	}
	s.stuck = append(s.stuck, p...)
	return n, nil
}
