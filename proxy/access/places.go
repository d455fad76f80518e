package access

import (
	"container/list"
	"context"
	"errors"
	"fmt"
	"sync"
)

// errCrowded says that too many reviews wait, and that most of them are of the one who
// asked.
var errCrowded = errors.New("too many reviews wait")

// waitCost is what a review that waits takes besides its question, in bytes.
const waitCost = 4 << 10

// places bound how many reviews upstream has at a time. Those who wait for a place take
// turns, each with one review, and nobody has more than half of the places: a flood of
// questions from one client delays that client.
//
// The reviews that wait are bounded in bytes. If there are too many, the longest line
// loses its last.
type places struct {
	most     int // places
	bytesMax int // of what waits

	mu struct {
		sync.Mutex
		taken, bytes int
		lines        map[string]*line // of who has a place or waits for one
		turns        list.List        // of the lines in which somebody waits
	}
}

// line is of one client.
type line struct {
	of           string
	taken, bytes int
	waiting      list.List     // of *waiter
	turn         *list.Element // nil if nobody waits
}

type waiter struct {
	line    *line
	bytes   int
	place   *list.Element // nil when it waits no more
	granted chan error    // nil for a place
}

func newPlaces(most, bytesMax int) *places {
	p := &places{most: most, bytesMax: bytesMax}
	p.mu.lines = map[string]*line{}
	return p
}

// take waits for a place, for a question of so many bytes.
func (p *places) take(ctx context.Context, of string, bytes int) (give func(), err error) {
	w := p.enter(of, bytes+waitCost)
	select {
	case err = <-w.granted:
	case <-ctx.Done():
		if p.leave(w) {
			return nil, fmt.Errorf("wait for one of %d places: %w", p.most, ctx.Err())
		}
		err = <-w.granted
	}
	if err != nil {
		return nil, err
	}
	return func() { p.give(w.line) }, nil
}

func (p *places) enter(of string, bytes int) *waiter {
	p.mu.Lock()
	defer p.mu.Unlock()
	l := p.mu.lines[of]
	if l == nil {
		l = &line{of: of}
		p.mu.lines[of] = l
	}
	w := &waiter{line: l, bytes: bytes, granted: make(chan error, 1)}
	w.place = l.waiting.PushBack(w)
	if l.turn == nil {
		l.turn = p.mu.turns.PushBack(l)
	}
	l.bytes += bytes
	p.mu.bytes += bytes
	p.grantLocked()
	for p.mu.bytes > p.bytesMax {
		p.shedLocked()
	}
	return w
}

// grantLocked gives free places to those whose turn it is.
func (p *places) grantLocked() {
	for e := p.mu.turns.Front(); e != nil && p.mu.taken < p.most; {
		l, next := e.Value.(*line), e.Next()
		if l.taken < max(1, p.most/2) {
			l.taken++
			p.mu.taken++
			p.mu.turns.MoveToBack(e)
			p.endLocked(l.waiting.Front().Value.(*waiter), nil)
			next = p.mu.turns.Front()
		}
		e = next
	}
}

// shedLocked refuses the last one of the line that takes most.
func (p *places) shedLocked() {
	var longest *line
	for e := p.mu.turns.Front(); e != nil; e = e.Next() {
		if l := e.Value.(*line); longest == nil || l.bytes > longest.bytes {
			longest = l
		}
	}
	p.endLocked(longest.waiting.Back().Value.(*waiter), errCrowded)
}

// endLocked ends a wait.
func (p *places) endLocked(w *waiter, outcome error) {
	l := w.line
	l.waiting.Remove(w.place)
	w.place = nil
	l.bytes -= w.bytes
	p.mu.bytes -= w.bytes
	if l.waiting.Len() == 0 {
		p.mu.turns.Remove(l.turn)
		l.turn = nil
		p.forgetLocked(l)
	}
	w.granted <- outcome
}

// forgetLocked forgets a line that has and wants nothing.
func (p *places) forgetLocked(l *line) {
	if l.taken == 0 && l.turn == nil {
		delete(p.mu.lines, l.of)
	}
}

// leave stops waiting. It is false if the wait has just ended.
func (p *places) leave(w *waiter) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if w.place == nil {
		return false
	}
	p.endLocked(w, context.Canceled)
	return true
}

func (p *places) give(l *line) {
	p.mu.Lock()
	defer p.mu.Unlock()
	l.taken--
	p.mu.taken--
	p.forgetLocked(l)
	p.grantLocked()
}
