package servers

import (
	"context"
	"slices"
	"sync"
	"time"
)

const (
	// openingMax bounds the feeds that read their state, or open a watch, at a time. After an
	// outage, all feeds want to do so at once.
	openingMax = 8
	// turnMax is how long one feed can delay another.
	turnMax = 5 * time.Second
)

// turns admit feeds to upstream, a few at a time and the most urgent first. While upstream is
// doubted, turns are shut and admit none.
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

// Urgency orders the waiters: open watches lose most by waiting, then the most recent readers.
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

// Wait waits for a turn and returns the function that ends it. After turnMax a turn no longer
// counts, because upstream may be slow for one resource alone.
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

// leave removes a waiter and returns whether it was still waiting. If not, it has a turn.
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

// shut shuts or opens the turns.
func (t *turns) shut(on bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.mu.shut = on
	t.nextLocked()
}

// nextLocked gives the free turns to the most urgent waiters.
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
