package h2

import (
	"errors"

	"github.com/watchproxy/watchproxy/proxy/exchange"
	"github.com/watchproxy/watchproxy/proxy/metrics"
	"github.com/watchproxy/watchproxy/proxy/watch"
)

// pumped is an open watch on the pump. Bytes for which there is no window stay unsent.
type pumped struct {
	s       *stream
	watch   *watch.Watch
	open    metrics.OpenWatch
	release exchange.Release // nil for nothing
	out     *exchange.ChunkWriter

	// The writer's lock guards the fields from here on.
	state  state
	unsent []byte
}

type state uint8

const (
	resting state = iota // no work
	queued               // in the connection's list of ready watches
	working              // a goroutine works on the watch
	again                // a goroutine works on the watch, and there is more work
	gone                 // the watch has left the pump
)

// ready queues the watch, because there may be events. It does not block for long.
func (p *pumped) ready() {
	w := p.s.out.w
	w.mu.Lock()
	p.wakeLocked()
	w.unlock()
}

func (p *pumped) wakeLocked() {
	switch p.state {
	case resting:
		w := p.s.out.w
		p.state = queued
		w.mu.turns.ready = append(w.mu.turns.ready, p)
		w.queueLocked()
	case working:
		p.state = again
	default:
	}
}

// appendEventsLocked lets a queued watch append its events. It releases the lock meanwhile.
func (p *pumped) appendEventsLocked(scratch *watch.Scratch) {
	s, w := p.s, p.s.out.w
	if len(p.unsent) > 0 || w.mu.waiting {
		p.watch.ClientWaited()
	}
	if errors.Is(s.err, watch.ErrStalled) {
		p.watch.Broken(s.err)
	}
	if !p.sendUnsentLocked() {
		p.state = resting
		return
	}
	p.state = working
	w.unlock()
	on, behind := p.step(scratch)
	w.mu.Lock()
	switch {
	case !on:
		p.state = gone
		w.running.Go(p.over)
	case behind && len(p.unsent) == 0:
		p.state = gone // catchUp works on the watch
		w.running.Go(p.catchUp)
	case p.state == again:
		p.state = queued
		w.mu.turns.ready = append(w.mu.turns.ready, p)
	default:
		p.state = resting // until there is an event or a window
	}
}

func (p *pumped) sendUnsentLocked() bool {
	if len(p.unsent) == 0 {
		return true
	}
	out := &p.s.out
	for len(p.unsent) > 0 && p.s.err == nil {
		if out.starvesLocked(len(p.unsent)) {
			if p.s.ctx.Err() != nil {
				break
			}
			out.parkLocked(true)
			return false
		}
		p.unsent = p.unsent[out.appendLocked(p.unsent, bufferMax):]
		out.sentLocked()
	}
	p.takeUnsentLocked()
	return true
}

func (p *pumped) takeUnsentLocked() (rest []byte) {
	rest, p.unsent = p.unsent, nil
	p.s.out.inTimeLocked()
	p.s.out.leaveLocked()
	return rest
}

func (p *pumped) step(scratch *watch.Scratch) (on, behind bool) {
	defer func() {
		if reason := recover(); reason != nil {
			p.s.c.server.Metrics.Panicked(p.s.c.server.Log, metrics.InWatch, reason)
			on = false
		}
	}()
	return p.watch.Step(&p.s.ctx, p.out, scratch)
}

// catchUp works on a watch at the client's speed until no work is left.
func (p *pumped) catchUp() {
	p.out.To = &p.s.out
	for {
		on, behind := p.step(nil)
		if !on {
			p.over()
			return
		}
		if !behind {
			break
		}
	}
	p.out.To = p
	w := p.s.out.w
	w.mu.Lock()
	p.state = resting
	w.unlock()
	p.ready()
}

func (p *pumped) over() {
	s, w := p.s, p.s.out.w
	defer w.running.Done()
	p.out.To = &s.out
	p.watch.Close()
	p.open.Ended(p.watch.Reason())
	if p.release != nil {
		p.release.Written(int64(p.out.Sent))
	}
	w.mu.Lock()
	rest := p.takeUnsentLocked()
	w.unlock()
	_, _ = s.out.Write(rest) // finish ignores a stream that has ended
	s.finish()
	s.close()
}

// Write implements io.Writer, for the events of a step. It does not wait for the client.
func (p *pumped) Write(b []byte) (int, error) {
	s, out, w := p.s, &p.s.out, p.s.out.w
	w.mu.Lock()
	defer w.unlock()
	if err := errors.Join(s.err, w.mu.err); err != nil {
		return 0, err
	}
	n := len(b)
	for len(b) > 0 && len(p.unsent) == 0 && !out.starvesLocked(len(b)) {
		b = b[out.appendLocked(b, bufferMax):]
		out.sentLocked()
	}
	if len(p.unsent)+len(b) > unsentFree && !out.unread.Hold() {
		s.endLocked(watch.ErrStalled)
		w.running.Go(s.RefuseUnread)
		return 0, s.err
	}
	if len(b) > 0 && len(p.unsent) == 0 { // a window may arrive before the step ends
		out.startStallLocked()
		out.parkLocked(false)
	}
	p.unsent = append(p.unsent, b...)
	return n, nil
}
