package h2

import (
	"errors"

	"github.com/watchproxy/watchproxy/proxy/metrics"
	"github.com/watchproxy/watchproxy/proxy/watch"
)

// state is the work state of a pumped watch. The connection's lock guards it.
type state uint8

const (
	resting state = iota // no work
	queued               // in the connection's list of ready streams
	working              // a goroutine works on the watch
	again                // a goroutine works on the watch, and there is more work
	gone                 // the watch has left the pump
)

// ready wakes a stream. It does not block for long.
func (s *stream) ready() {
	s.c.mu.Lock()
	s.wakeLocked()
	s.c.unlock()
}

// wakeLocked wakes the handler that waits for the stream. A pumped watch is queued for the pump
// instead.
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
// queues the connection after its write.
func (c *Conn) queueLocked() {
	if len(c.mu.ready) > 0 && !c.mu.queued && !c.mu.writing {
		c.mu.queued = true
		c.server.pump.add(c)
	}
}

// work writes the events of all ready watches together, without waiting for the client.
func (c *Conn) work(scratch *watch.Scratch) {
	c.mu.Lock()
	c.mu.queued = false
	if c.mu.writing { // the writer queues the connection again
		c.unlock()
		return
	}
	c.mu.writing = true
	c.stepsLocked(scratch)
	c.write(false)
}

// stepsLocked lets ready watches append events until the buffer is full. It must be called only by
// the writer.
func (c *Conn) stepsLocked(scratch *watch.Scratch) {
	for len(c.mu.ready) > 0 && len(c.mu.buf) < bufferMax {
		s := c.mu.ready[0]
		if c.mu.ready = c.mu.ready[1:]; len(c.mu.ready) == 0 {
			c.mu.ready = nil
		}
		if len(s.unsent) > 0 || c.mu.waiting {
			s.pumped.ClientWaited()
		}
		if errors.Is(s.err, watch.ErrStalled) {
			s.pumped.Broken(s.err)
		}
		if !s.sendUnsentLocked() {
			s.state = resting
			continue
		}
		s.state = working
		c.unlock()
		on, behind := s.step(scratch)
		c.mu.Lock()
		switch {
		case !on:
			s.state = gone
			c.running.Go(s.over)
		case behind && len(s.unsent) == 0:
			s.state = gone // catchUp works on the watch
			c.running.Go(s.catchUp)
		case s.state == again:
			s.state = queued
			c.mu.ready = append(c.mu.ready, s)
		default:
			s.state = resting // until there is an event or a window
		}
	}
}

// sendUnsentLocked appends unsent bytes, for which there was no window. It returns false if some bytes
// are still unsent.
func (s *stream) sendUnsentLocked() bool {
	if len(s.unsent) == 0 {
		return true
	}
	for len(s.unsent) > 0 && s.err == nil {
		if s.starvesLocked(len(s.unsent)) {
			if s.ctx.Err() != nil {
				break
			}
			s.parkLocked(true)
			return false
		}
		s.unsent = s.unsent[s.c.appendDataLocked(s, s.unsent, bufferMax):]
		s.openedLocked()
	}
	s.takeUnsentLocked()
	return true
}

// parkLocked queues the stream for the connection's window.
func (s *stream) parkLocked(again bool) {
	if s.window >= s.least && s.place == nil { // the stream's own window is open
		s.lineUpLocked(&s.c.mu.forWindow, again)
	}
}

// takeUnsentLocked returns the unsent bytes and removes them from the stream.
func (s *stream) takeUnsentLocked() (rest []byte) {
	rest, s.unsent = s.unsent, nil
	s.inTimeLocked()
	s.leaveLocked()
	return rest
}

func (s *stream) step(scratch *watch.Scratch) (on, behind bool) {
	defer func() {
		if p := recover(); p != nil {
			s.c.server.Metrics.Panicked(s.c.server.Log, metrics.InWatch, p)
			on = false
		}
	}()
	return s.pumped.Step(&s.ctx, s.out, scratch)
}

// catchUp works on a watch at the client's speed until no work is left.
func (s *stream) catchUp() {
	s.out.To = s
	for {
		on, behind := s.step(nil)
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
	s.closed(s.pumped.Reason())
	s.c.mu.Lock()
	rest := s.takeUnsentLocked()
	s.c.unlock()
	_, _ = s.Write(rest) // finish ignores a stream that has ended
	s.c.finish(s)
	s.close()
}

// eager writes without waiting for the client. Bytes for which there is no window stay unsent.
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
	for len(p) > 0 && len(s.unsent) == 0 && !s.starvesLocked(len(p)) {
		p = p[c.appendDataLocked(s, p, bufferMax):]
		s.openedLocked()
	}
	if len(s.unsent)+len(p) > unsentFree && !s.unread.Hold() {
		s.endLocked(watch.ErrStalled)
		c.running.Go(s.stalled)
		return 0, s.err
	}
	if len(p) > 0 && len(s.unsent) == 0 { // a window may arrive before the step ends
		s.late = s.stalls()
		s.parkLocked(false)
	}
	s.unsent = append(s.unsent, p...)
	return n, nil
}
