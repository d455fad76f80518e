package servers

import (
	"sync"
	"time"
)

// Health tells whether upstream can be reached. All feeds share it. While upstream is down, only
// one goroutine sends checks, and all feeds go on when upstream is back.
//
// A feed does not know why its request or stream failed, so it raises a doubt. No feed may then send
// a request until a check that started after the doubt has found a server ready (see [Set]). If
// upstream is ready, the failure is the feed's own, and the feed backs off. When each feed had only a
// back-off of its own, 50 feeds sent 90 requests a second during an outage. They took ten seconds to
// recover once upstream was back, as measured by `make restarts`.
//
//	no answer, a broken or ended stream, 5xx ─► doubt ─► ready ─────► retry; after two or more
//	                                              │                   failures, back off first
//	                                              └────► not ready ─► all feeds retry when it is ready
//	any other answer ───────────────────────────────────────────────► upstream is there: back off
//
// It takes longer to notice a server that vanishes without closing its connections. client-go's
// transport pings a connection after 30 s of silence and gives up 15 s later. A consistent read
// gives up after feed.AskTimeout.
type Health struct {
	Turns *turns
	check func() // requests an immediate check

	mu struct {
		sync.Mutex
		doubts uint64        // number of doubts raised so far
		solved uint64        // number of doubts that checks have settled
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

// Doubt stops all feeds from sending requests until a check that started after this call finds
// upstream ready.
func (h *Health) Doubt() {
	h.mu.Lock()
	h.mu.doubts++
	h.Turns.shut(true)
	h.mu.Unlock()
	h.check()
}

// raised returns the number of doubts so far. A check that begins now settles these.
func (h *Health) raised() uint64 {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.mu.doubts
}

// checked records the result of a check that began when the given number of doubts had been raised.
// It returns true if later doubts remain, so that another check must follow.
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

// isAway tells whether the last check failed.
func (h *Health) isAway() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.mu.away
}

// returning is the time after its return in which upstream may refuse requests that are allowed,
// because it does not know all rights and resources yet.
const returning = 10 * time.Second

// IsReturning tells whether upstream has just come back.
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
