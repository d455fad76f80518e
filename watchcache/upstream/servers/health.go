package servers

import (
	"sync"
	"time"
)

// Health is whether upstream is there to be asked. All feeds share it, so that an upstream that
// is away is asked by one goroutine, and all of them go on when it is back.
//
// A feed whose request or stream fails does not know why. It doubts upstream, which shuts the turns
// until a check that began after that doubt has found a server ready (see [Set]). A resource
// that fails while upstream is ready is that feed's own matter: the feed backs off.
//
//	no answer, a broken or ended stream, 5xx ─► doubt ─► ready ─────► go on; from the second failure
//	                                              │                   in a row after a back-off
//	                                              └────► not ready ─► go on when it is, all at once
//	any other answer ───────────────────────────────────────────────► upstream is there: back off
//
// A server that vanishes without a word is not noticed at once. client-go's transport pings a
// connection that has been silent for 30 s and gives up after 15 s more, and a consistent read
// gives up after askTimeout.
type Health struct {
	Turns *turns
	check func() // asks for a check soon

	mu struct {
		sync.Mutex
		doubts uint64        // raised so far
		solved uint64        // those among them that a check has dispelled
		away   bool          // a check has failed since
		since  time.Time     // when upstream came back the last time
		back   chan struct{} // closed when it comes back the next time
	}
}

func newHealth(check func()) *Health {
	h := &Health{Turns: newTurns(openingMax), check: check}
	h.mu.back = make(chan struct{})
	return h
}

// Doubt keeps all feeds from upstream until a check that begins from now on has found it ready.
func (h *Health) Doubt() {
	h.mu.Lock()
	h.mu.doubts++
	h.Turns.shut(true)
	h.mu.Unlock()
	h.check()
}

// raised is how many doubts there are that a check which begins now can dispel.
func (h *Health) raised() uint64 {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.mu.doubts
}

// checked notes what came of a check that began when some doubts had been raised. It tells whether
// there are others, or still those, so that another check has to follow.
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

// isAway tells whether upstream was not ready when it was last asked.
func (h *Health) isAway() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.mu.away
}

// returning is how long after its return an upstream may refuse what it will allow in a moment: it does
// not know all rights and resources yet.
const returning = 10 * time.Second

// IsReturning tells whether upstream has just come back.
func (h *Health) IsReturning() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return time.Since(h.mu.since) < returning
}

// NextReturn returns a channel that is closed when upstream comes back the next time.
func (h *Health) NextReturn() <-chan struct{} {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.mu.back
}
