package fair

import (
	"container/heap"
	"container/list"
	"context"
	"errors"
	"slices"
	"sync"
)

// Queue hands out a capacity, which may be bytes or places, and lets users take turns when
// there is not enough for all. A user's claims are served in the order in which they came. A
// semaphore that serves everybody in that order gives most to the user who asks most.
//
// It is start-time fair queueing: each claim moves its user's next turn back by the claim's cost,
// and the user whose turn is earliest is served. That is round robin, weighted by cost: it needs
// no quantum, and claims may differ in size by orders of magnitude.
//
// Invariants:
//
//  1. What is held is never more than the capacity.
//  2. A user who holds something does not get more than the share in all, so that others always
//     find room. Who holds nothing may have what it needs.
//  3. The first in turn waits for nothing but room for its claim. Nobody overtakes it, so that
//     small claims do not starve a large one.
//  4. Of two users who wait all the time and are below their share, neither is served more than
//     the other by more than the greatest costs of a claim of each.
//  5. Claims that wait hold at most room bytes. When more come, the last claim of the user whose
//     claims hold most is refused, of those that hold any.
//  6. A user who holds nothing and waits for nothing is forgotten once nobody waits.
type Queue struct {
	Capacity int64
	share    int64 // of one user; the capacity for no bound
	room     int64 // for claims that wait, in bytes

	mu struct {
		sync.Mutex
		free    int64
		now     int64 // the turn that was served last
		entered int64 // counts what entered decides between
		waiting int64 // bytes of claims that wait
		waiters int
		flows   map[string]*flow
		turns   turns   // flows whose first claim waits for its turn or for room
		rested  []*flow // flows with nothing to do whose next turn is ahead of now
		spare   []*flow // to be used again
	}
}

// Claim is what somebody wants.
type Claim struct {
	User string
	Size int64 // of the capacity
	Cost int64 // how far it moves the user's next turn back
	Held int64 // bytes of memory that it holds while it waits
}

var (
	// ErrCrowded says that a claim was refused: too many wait.
	ErrCrowded = errors.New("too many wait already")
	// errNeverFits says that a claim is larger than the capacity.
	errNeverFits = errors.New("larger than all there is")
)

// flow is what a user holds and waits for.
type flow struct {
	user    string
	held    int64     // of the capacity
	next    int64     // turn
	waiting int64     // bytes
	waiters list.List // of *waiter
	place   int       // in turns, -1 if it is not there
	entered int64
	rested  bool
}

// Waiter is a claim that waits. Err is set before decided is closed.
type Waiter struct {
	Claim
	flow    *flow
	element *list.Element // nil when it does not wait any more
	decided chan struct{}
	err     error
}

const (
	// flowsRested bounds the users that are remembered though they have nothing to do.
	flowsRested = 256
	flowsSpare  = 64
)

// NewQueue returns a queue of a capacity, of which a user may hold a share. Waiting claims may hold room bytes.
func NewQueue(capacity, share, room int64) *Queue {
	q := &Queue{Capacity: capacity, share: share, room: room}
	q.mu.free, q.mu.flows = capacity, map[string]*flow{}
	return q
}

// Take waits for a claim until ctx ends. What was taken is given back with give.
func (q *Queue) Take(ctx context.Context, c Claim) error {
	w, err := q.Enter(c)
	if w == nil {
		return err
	}
	return q.Wait(ctx, w)
}

// Try takes at once or not at all.
func (q *Queue) Try(c Claim) bool {
	w, err := q.Enter(c)
	if w == nil {
		return err == nil
	}
	if q.leave(w) && w.err == nil {
		q.Give(w.User, w.Size) // it was granted just now
	}
	return false
}

// Wait is the rest of take.
func (q *Queue) Wait(ctx context.Context, w *Waiter) error {
	select {
	case <-w.decided:
		return w.err
	case <-ctx.Done():
		if q.leave(w) && w.err == nil {
			q.Give(w.User, w.Size) // it was granted at the same time
		}
		return ctx.Err()
	}
}

// Enter takes at once, or fails, or returns a waiter, which has to wait.
func (q *Queue) Enter(c Claim) (*Waiter, error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if c.Size > q.Capacity {
		return nil, errNeverFits
	}
	f := q.flowLocked(c.User)
	defer q.restLocked(f)
	if len(q.mu.turns) == 0 && f.waiters.Len() == 0 && q.sharesLocked(f, c.Size) && c.Size <= q.mu.free {
		q.grantLocked(f, c)
		return nil, nil
	}
	defer q.serveLocked()
	if !q.makeRoomLocked(f, c.Held) {
		return nil, ErrCrowded
	}
	w := &Waiter{Claim: c, flow: f, decided: make(chan struct{})}
	w.element = f.waiters.PushBack(w)
	f.waiting += c.Held
	q.mu.waiting += c.Held
	q.mu.waiters++
	q.placeLocked(f)
	return w, nil
}

// leave takes a waiter out, unless that has been decided already.
func (q *Queue) leave(w *Waiter) (decided bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if w.element == nil {
		return true
	}
	q.dropLocked(w)
	q.serveLocked()
	q.restLocked(w.flow)
	return false
}

// Give gives back some of what a user has taken.
func (q *Queue) Give(user string, size int64) {
	q.mu.Lock()
	defer q.mu.Unlock()
	f := q.mu.flows[user]
	if size == 0 {
		return
	}
	if f == nil || f.held < size {
		panic("BUG: more is given back than was taken")
	}
	f.held -= size
	q.mu.free += size
	q.placeLocked(f)
	q.serveLocked()
	q.restLocked(f)
}

// Taken is how much of the capacity is held.
func (q *Queue) Taken() int64 {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.Capacity - q.mu.free
}

// Waiting is how many claims wait.
func (q *Queue) Waiting() int {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.mu.waiters
}

// serveLocked grants what there is room for, in turn.
func (q *Queue) serveLocked() {
	for len(q.mu.turns) > 0 {
		f := q.mu.turns[0]
		w := f.waiters.Front().Value.(*Waiter)
		if w.Size > q.mu.free {
			return
		}
		q.grantLocked(f, w.Claim)
		q.dropLocked(w)
		close(w.decided)
		q.restLocked(f)
	}
	if q.mu.waiters > 0 {
		return
	}
	for _, f := range q.mu.rested {
		f.rested = false
		q.restLocked(f)
	}
	q.mu.rested = q.mu.rested[:0]
}

func (q *Queue) grantLocked(f *flow, c Claim) {
	q.mu.now = max(q.mu.now, f.next)
	f.next = q.mu.now + c.Cost
	f.held += c.Size
	q.mu.free -= c.Size
	q.enterLocked(f)
}

// enterLocked has those who have the same turn served before a flow.
func (q *Queue) enterLocked(f *flow) {
	q.mu.entered++
	f.entered = q.mu.entered
}

// dropLocked takes a waiter out of the queue, and sees to its flow's place.
func (q *Queue) dropLocked(w *Waiter) {
	w.flow.waiters.Remove(w.element)
	w.element = nil
	w.flow.waiting -= w.Held
	q.mu.waiting -= w.Held
	q.mu.waiters--
	q.placeLocked(w.flow)
}

// makeRoomLocked refuses claims until more bytes may wait, and tells whether they may. Those of
// the user who would have most are refused first, which may be the one that asks.
func (q *Queue) makeRoomLocked(f *flow, more int64) bool {
	for q.mu.waiting+more > q.room {
		most := f
		for _, other := range q.mu.flows {
			if other != f && other.waiting > max(f.waiting+more, most.waiting) {
				most = other
			}
		}
		if most == f {
			return false
		}
		last := most.lastHolding()
		last.err = ErrCrowded
		q.dropLocked(last)
		close(last.decided)
		q.restLocked(most)
	}
	return true
}

// lastHolding is the last waiter that holds memory. Those that hold none are not refused.
func (f *flow) lastHolding() *Waiter {
	e := f.waiters.Back()
	for e.Value.(*Waiter).Held == 0 {
		e = e.Prev()
	}
	return e.Value.(*Waiter)
}

// sharesLocked tells whether a user may have so much more, if there is room.
func (q *Queue) sharesLocked(f *flow, size int64) bool {
	return f.held == 0 || f.held+size <= q.share
}

// placeLocked sees to it that a flow is among those whose turn may come if its first claim may be
// granted.
func (q *Queue) placeLocked(f *flow) {
	first := f.waiters.Front()
	may := first != nil && q.sharesLocked(f, first.Value.(*Waiter).Size)
	switch {
	case may && f.place < 0:
		f.next = max(f.next, q.mu.now)
		q.enterLocked(f)
		heap.Push(&q.mu.turns, f)
	case may:
		heap.Fix(&q.mu.turns, f.place)
	case f.place >= 0:
		heap.Remove(&q.mu.turns, f.place)
	}
}

func (q *Queue) flowLocked(user string) *flow {
	f := q.mu.flows[user]
	if f != nil {
		return f
	}
	if n := len(q.mu.spare); n > 0 {
		f, q.mu.spare = q.mu.spare[n-1], q.mu.spare[:n-1]
		f.user, f.next = user, 0
	} else {
		f = &flow{user: user, place: -1}
	}
	q.mu.flows[user] = f
	return f
}

// restLocked forgets a flow that has nothing to do. While others wait, it has to be remembered how
// much it was served before its next claim: it may be one that asks for a single dear thing at a
// time.
func (q *Queue) restLocked(f *flow) {
	switch {
	case f.held > 0 || f.waiters.Len() > 0 || f.rested:
	case q.mu.waiters > 0 && f.next > q.mu.now && len(q.mu.rested) < flowsRested:
		f.rested = true
		q.mu.rested = append(q.mu.rested, f)
	case q.mu.flows[f.user] == f:
		delete(q.mu.flows, f.user)
		if len(q.mu.spare) < flowsSpare {
			q.mu.spare = append(q.mu.spare, f)
		}
	}
}

// turns are a heap of flows by their next turn; of those with the same, the one that came first.
type turns []*flow

// Len implements heap.Interface.
func (t turns) Len() int { return len(t) }

// Less implements heap.Interface.
func (t turns) Less(i, j int) bool {
	if t[i].next != t[j].next {
		return t[i].next < t[j].next
	}
	return t[i].entered < t[j].entered
}

// Swap implements heap.Interface.
func (t turns) Swap(i, j int) {
	t[i], t[j] = t[j], t[i]
	t[i].place, t[j].place = i, j
}

// Push implements heap.Interface.
func (t *turns) Push(f any) {
	f.(*flow).place = len(*t)
	*t = append(*t, f.(*flow))
}

// Pop implements heap.Interface.
func (t *turns) Pop() any {
	last := len(*t) - 1
	f := (*t)[last]
	*t = slices.Delete(*t, last, last+1) // clears it
	f.place = -1
	return f
}
