package client

import (
	"context"
	"sync"
	"time"
)

const (
	// turns is the maximum number of feeds that read their state or open a watch concurrently.
	// After an outage, all feeds need to do so.
	turns = 8
	// turnMax is the maximum time for which one feed can delay another feed.
	turnMax = 5 * time.Second
)

// Health reports whether upstream can be reached. All feeds share it. While upstream is down, only
// the checks ask it. All feeds continue when upstream is back.
//
// A feed cannot determine why its request or stream failed, so it raises a doubt. Then no feed may
// send a request until a check that started after the doubt has found a server ready (see
// [Servers]). After that, the failure concerns only this feed, which backs off. With back-offs
// alone, 50 feeds sent 90 requests a second during an outage, and took ten seconds to recover (make
// restarts).
type Health struct {
	check func()        // requests an immediate check
	slots chan struct{} // one for each turn that is taken

	mu struct {
		sync.Mutex
		doubts uint64        // number of doubts raised so far
		solved uint64        // number of doubts that checks have resolved
		open   chan struct{} // closed while there is no doubt
		away   bool          // the last check failed
		since  time.Time     // when upstream last came back
		back   chan struct{} // closed when it next comes back
	}
}

func newHealth(check func()) *Health {
	h := &Health{check: check, slots: make(chan struct{}, turns)}
	h.mu.back, h.mu.open = make(chan struct{}), make(chan struct{})
	close(h.mu.open)
	return h
}

// Turn waits for a turn to ask upstream for much: until fewer than eight feeds have one, and no
// doubt is left. It returns a function that ends the turn. After turnMax, a turn no longer counts,
// because upstream may be slow for this resource only.
func (h *Health) Turn(ctx context.Context) (end func(), err error) {
	for {
		select {
		case h.slots <- struct{}{}:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
		free := sync.OnceFunc(func() { <-h.slots })
		if !h.isDoubted() {
			late := time.AfterFunc(turnMax, free)
			return func() {
				late.Stop()
				free()
			}, nil
		}
		free()
		if err := h.Wait(ctx); err != nil {
			return nil, err
		}
	}
}

// Wait waits until no doubt is left.
func (h *Health) Wait(ctx context.Context) error {
	h.mu.Lock()
	open := h.mu.open
	h.mu.Unlock()
	select {
	case <-open:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Doubt raises a doubt, and requests a check that may resolve it.
func (h *Health) Doubt() {
	h.mu.Lock()
	if !h.doubtedLocked() {
		h.mu.open = make(chan struct{})
	}
	h.mu.doubts++
	h.mu.Unlock()
	h.check()
}

func (h *Health) doubtedLocked() bool { return h.mu.doubts > h.mu.solved }

func (h *Health) isDoubted() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.doubtedLocked()
}

// raised returns the number of doubts so far. A check that begins now resolves these doubts.
func (h *Health) raised() uint64 {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.mu.doubts
}

// checked records the result of a check. raised is the number of doubts that the check resolves if
// upstream is ready. If checked returns true, doubts remain, and another check must follow.
func (h *Health) checked(raised uint64, ready bool) (doubted bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if !ready {
		h.mu.away = h.doubtedLocked()
		return h.mu.away
	}
	if h.mu.away {
		h.mu.away, h.mu.since = false, time.Now()
		close(h.mu.back)
		h.mu.back = make(chan struct{})
	}
	if h.doubtedLocked() && raised == h.mu.doubts {
		close(h.mu.open)
	}
	h.mu.solved = max(h.mu.solved, raised)
	return h.doubtedLocked()
}

func (h *Health) isAway() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.mu.away
}

// returning is how long upstream, after its return, may refuse allowed requests, because it has not
// loaded all access rules and resources yet.
const returning = 10 * time.Second

// IsReturning reports whether upstream has just come back.
func (h *Health) IsReturning() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return time.Since(h.mu.since) < returning
}

// NextReturn returns a channel that is closed when upstream next comes back.
func (h *Health) NextReturn() <-chan struct{} {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.mu.back
}
