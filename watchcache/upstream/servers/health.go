package servers

import (
	"sync"
	"time"
)

// Health reports whether upstream can be reached. All feeds share it. While upstream is down, only
// one goroutine sends checks. All feeds continue when upstream is back.
//
// A feed cannot determine why its request or stream failed, so it raises a doubt. Then no feed may
// send a request until a check that started after the doubt has found a server ready (see [Set]).
// If upstream is ready, the failure concerns only this feed, and the feed backs off. Without
// doubts, each feed had only its own back-off. Then 50 feeds sent 90 requests a second during an
// outage, and took ten seconds to recover afterwards (make restarts).
//
//	no response, broken or ended stream, 5xx ─► doubt ─► ready ─────► retry; after two or more
//	                                              │                   failures, back off first
//	                                              └────► not ready ─► all feeds retry when ready
//	any other response ─────────────────────────────────────────────► upstream is there: back off
//
// A server that vanishes without closing its connections is detected later. client-go's transport
// pings a connection after 30 s of silence and gives up 15 s later. A consistent read gives up
// after feed.AskTimeout.
type Health struct {
	Turns *turns
	check func() // requests an immediate check

	mu struct {
		sync.Mutex
		doubts uint64        // number of doubts raised so far
		solved uint64        // number of doubts that checks have resolved
		away   bool          // the last check failed
		since  time.Time     // when upstream last came back
		back   chan struct{} // closed when it next comes back
	}
}

func newHealth(check func()) *Health {
	h := &Health{Turns: newTurns(openingMax), check: check}
	h.mu.back = make(chan struct{})
	return h
}

// Doubt blocks the requests of all feeds until a check that started after this call finds upstream
// ready.
func (h *Health) Doubt() {
	h.mu.Lock()
	h.mu.doubts++
	h.Turns.shut(true)
	h.mu.Unlock()
	h.check()
}

// raised returns the number of doubts so far. A check that begins now resolves these doubts.
func (h *Health) raised() uint64 {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.mu.doubts
}

// checked records the result of a check. raised is the number of doubts when the check began. If
// checked returns true, later doubts remain, and another check must follow.
func (h *Health) checked(raised uint64, ready bool) (doubted bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	switch {
	case !ready:
		h.mu.away = h.mu.doubts > h.mu.solved
	default:
		h.mu.solved = max(h.mu.solved, raised)
		if h.mu.away {
			h.mu.away, h.mu.since = false, time.Now()
			close(h.mu.back)
			h.mu.back = make(chan struct{})
		}
	}
	doubted = h.mu.doubts > h.mu.solved
	h.Turns.shut(doubted)
	return doubted
}

// isDoubted reports whether a feed waits for a check.
func (h *Health) isDoubted() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.mu.doubts > h.mu.solved
}

// isAway reports whether the last check failed.
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
