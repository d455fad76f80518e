package servers

import (
	"context"
	"slices"
	"sync"
	"time"
)

const (
	// openingMax is the maximum number of feeds that read their state or open a watch concurrently.
	// After an outage, all feeds need to do so.
	openingMax = 8
	// turnMax is the maximum time for which one feed can delay another feed.
	turnMax = 5 * time.Second
)

// turns admits feeds to upstream: a few at a time, and the most urgent feeds first. While upstream
// is doubted, turns is shut and admits no feeds.
type turns struct {
	max int
	mu  struct {
		sync.Mutex
		shut    bool
		taken   int
		waiting []*waiter // bounded: a few per feed
	}
}

// waiter waits for a turn.
type waiter struct {
	urgency func() Urgency // called when a turn is free
	turn    chan struct{}  // closed when the waiter has its turn
}

// Urgency orders the waiters. Feeds with open watches come first, because their clients need new
// events. Among equal feeds, the most recently read feed comes first.
type Urgency struct {
	Watched bool
	Used    int64 // moment of the last read
}

func (u Urgency) exceeds(v Urgency) bool {
	if u.Watched != v.Watched {
		return u.Watched
	}
	return u.Used > v.Used
}

func newTurns(most int) *turns { return &turns{max: most} }

// Wait waits for a turn. It returns a function that ends the turn. After turnMax, a turn no longer
// counts, because upstream may be slow for this resource only.
func (t *turns) Wait(ctx context.Context, urgency func() Urgency) (end func(), err error) {
	w := &waiter{urgency, make(chan struct{})}
	t.mu.Lock()
	t.mu.waiting = append(t.mu.waiting, w)
	t.nextLocked()
	t.mu.Unlock()
	over := sync.OnceFunc(t.end)
	select {
	case <-w.turn:
	case <-ctx.Done():
		if !t.leave(w) {
			over()
		}
		return nil, ctx.Err()
	}
	late := time.AfterFunc(turnMax, over)
	return func() {
		late.Stop()
		over()
	}, nil
}

// leave removes a waiter. It reports whether the waiter was still waiting. Otherwise, the waiter
// has a turn.
func (t *turns) leave(w *waiter) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	i := slices.Index(t.mu.waiting, w)
	if i < 0 {
		return false
	}
	t.mu.waiting = slices.Delete(t.mu.waiting, i, i+1)
	return true
}

func (t *turns) end() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.mu.taken--
	t.nextLocked()
}

// shut closes or reopens the turns.
func (t *turns) shut(on bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.mu.shut = on
	t.nextLocked()
}

// nextLocked gives free turns to the most urgent waiters.
func (t *turns) nextLocked() {
	for !t.mu.shut && t.mu.taken < t.max && len(t.mu.waiting) > 0 {
		next, most := 0, t.mu.waiting[0].urgency()
		for i, w := range t.mu.waiting[1:] {
			if u := w.urgency(); u.exceeds(most) {
				next, most = i+1, u
			}
		}
		close(t.mu.waiting[next].turn)
		t.mu.waiting = slices.Delete(t.mu.waiting, next, next+1)
		t.mu.taken++
	}
}
