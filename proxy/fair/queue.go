package fair

import (
	"cmp"
	"container/heap"
	"container/list"
	"context"
	"errors"
	"sync"
)

// Queue hands out a capacity, in bytes or slots. If the capacity does not suffice for all users,
// they take turns. A user's claims are served in order of arrival. A semaphore would serve all
// claims in order of arrival, so the user with the most claims would get most of the capacity.
//
// The algorithm is start-time fair queueing: each claim moves its user's next turn back by the
// claim's cost, and the user with the earliest turn is served. This is round robin, weighted by
// cost. It needs no quantum, and claims may differ in size by orders of magnitude.
//
// Invariants:
//
//  1. Users never hold more than the capacity.
//  2. In a shared queue, a user who holds nothing may be granted any claim. Further claims are
//     granted only if the user then holds no more than is free. So one user gets half, two users get
//     a third each, and others find room, whatever the number of users.
//  3. The first claim in turn waits only for room. No other claim that may wait overtakes it, so
//     small claims do not starve a large claim. Those that cannot wait (Try) take what is free.
//  4. If two users always have waiting claims that rule 2 allows, the costs served to them differ by
//     at most the sum of their most expensive claims.
//  5. Waiting claims hold at most room bytes. If a new claim would exceed this limit, the queue
//     refuses a claim of the user with the most waiting bytes: the user's last claim that holds any
//     bytes.
//  6. The queue deletes users without claims once no claim waits.
type Queue struct {
	Capacity int64
	shared   bool   // rule 2 applies
	room     int64  // for waiting claims, in bytes
	long     *Queue // of slots, for long turns; nil if these do not differ

	mu struct {
		sync.Mutex
		free    int64
		now     int64 // the latest turn served
		entered int64 // last value of flow.entered
		waiting int64 // bytes of waiting claims
		waiters int
		flows   map[string]*flow
		turns   heaped  // flows whose first claim waits for a turn or for room
		greedy  heaped  // flows whose first claim waits until more is free (2)
		rested  []*flow // flows without claims whose next turn is after now
	}
}

// Claim is a user's claim to a part of a capacity.
type Claim struct {
	User string
	Size int64 // part of the capacity
	Cost int64 // added to the user's next turn
	Held int64 // bytes of memory that the claim holds while it waits
}

var (
	// ErrCrowded says that a claim was refused because too many claims wait.
	ErrCrowded = errors.New("too many wait already")
	// errNeverFits says that a claim is larger than the capacity.
	errNeverFits = errors.New("larger than the capacity")
)

// flow is the state of one user: granted claims and waiting claims.
type flow struct {
	user    string
	held    int64     // part of the capacity
	next    int64     // time of the next turn, in units of cost
	waiting int64     // bytes of waiting claims
	waiters list.List // of *Waiter
	in      *heaped   // the heap that has the flow, or nil
	place   int       // index in the heap
	entered int64     // orders flows with the same turn
	rested  bool
}

// Waiter is a waiting claim. Its err is set before decided is closed.
type Waiter struct {
	Claim
	flow    *flow
	element *list.Element // nil once the claim is decided
	decided chan struct{}
	err     error
}

// flowsRested limits the number of remembered users without claims.
const flowsRested = 256

// NewQueue returns a queue. If it is shared, no user gets all of the capacity. Waiting claims may
// hold at most room bytes of memory.
func NewQueue(capacity int64, shared bool, room int64) *Queue {
	q := &Queue{Capacity: capacity, shared: shared, room: room}
	q.mu.free, q.mu.flows = capacity, map[string]*flow{}
	q.mu.turns.less = func(a, b *flow) bool {
		return cmp.Or(cmp.Compare(a.next, b.next), cmp.Compare(a.entered, b.entered)) < 0
	}
	q.mu.greedy.less = func(a, b *flow) bool { return a.needs() < b.needs() }
	return q
}

// Take waits until a claim is granted or ctx ends. A granted claim must be returned with Give.
func (q *Queue) Take(ctx context.Context, c Claim) error {
	w, err := q.Enter(c)
	if w != nil {
		err = q.Wait(ctx, w)
	}
	return err
}

// Try grants a claim if there is room, also if other claims wait. Otherwise a large claim that waits
// would stop all who cannot wait.
func (q *Queue) Try(c Claim) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	f := q.flowLocked(c.User)
	defer q.restLocked(f)
	if c.Size > q.mu.free || !q.sharesLocked(f, c.Size) {
		return false
	}
	if q.mu.waiters == 0 {
		q.grantLocked(f, c)
		return true
	}
	q.chargeLocked(f, c.Cost)
	f.held += c.Size
	q.mu.free -= c.Size
	q.placeLocked(f)
	q.serveLocked() // another user's claim may be the first now
	return true
}

// chargeLocked lets a user's next turns come later by a cost that was not granted in turn. A user who
// is often charged does not lose more turns than the others need for all of the capacity.
func (q *Queue) chargeLocked(f *flow, cost int64) {
	f.next = max(f.next, min(max(f.next, q.mu.now)+cost, q.mu.now+q.Capacity))
}

func (q *Queue) flowLocked(user string) *flow {
	f := q.mu.flows[user]
	if f == nil {
		f = &flow{user: user}
		q.mu.flows[user] = f
	}
	return f
}

// Wait waits until the claim of a waiter is granted or ctx ends.
func (q *Queue) Wait(ctx context.Context, w *Waiter) error {
	select {
	case <-w.decided:
		return w.err
	case <-ctx.Done():
		q.leave(w)
		return ctx.Err()
	}
}

// Enter grants a claim without a wait, fails, or returns a waiter for Wait.
func (q *Queue) Enter(c Claim) (*Waiter, error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if c.Size > q.Capacity {
		return nil, errNeverFits
	}
	f := q.flowLocked(c.User)
	defer q.restLocked(f)
	if len(q.mu.turns.flows) == 0 && f.waiters.Len() == 0 && q.sharesLocked(f, c.Size) && c.Size <= q.mu.free {
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

// leave withdraws a waiting claim. If the claim was granted at the same time, leave gives it back.
func (q *Queue) leave(w *Waiter) {
	q.mu.Lock()
	defer q.mu.Unlock()
	switch {
	case w.element != nil:
		if f := w.flow; q.mu.free > 0 && q.mu.turns.first() == f && f.waiters.Front() == w.element {
			q.chargeLocked(f, w.Cost) // it has had its turn: others waited while there was room
			q.enterLocked(f)
		}
		q.dropLocked(w)
		q.serveLocked()
		q.restLocked(w.flow)
	case w.err == nil:
		q.giveLocked(w.flow, w.Size)
	}
}

// Give returns size of a user's granted claims to the queue.
func (q *Queue) Give(user string, size int64) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if size > 0 {
		q.giveLocked(q.mu.flows[user], size)
	}
}

func (q *Queue) giveLocked(f *flow, size int64) {
	if f == nil || f.held < size {
		panic("BUG: more is given back than was taken")
	}
	f.held -= size
	q.mu.free += size
	q.placeLocked(f)
	q.serveLocked()
	q.restLocked(f)
}

// Taken returns the part of the capacity that users hold.
func (q *Queue) Taken() int64 {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.Capacity - q.mu.free
}

// Waiting returns the number of waiting claims.
func (q *Queue) Waiting() int {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.mu.waiters
}

// serveLocked grants claims in turn while there is room.
func (q *Queue) serveLocked() {
	for {
		for f := q.mu.greedy.first(); f != nil && f.needs() <= q.mu.free; f = q.mu.greedy.first() {
			q.placeLocked(f)
		}
		f := q.mu.turns.first()
		if f == nil {
			break
		}
		w := f.waiters.Front().Value.(*Waiter)
		if !q.sharesLocked(f, w.Size) { // less is free than when the flow got its place
			q.placeLocked(f)
			continue
		}
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

// enterLocked puts a flow behind all flows with the same turn.
func (q *Queue) enterLocked(f *flow) {
	q.mu.entered++
	f.entered = q.mu.entered
}

// dropLocked removes a waiter from the queue.
func (q *Queue) dropLocked(w *Waiter) {
	w.flow.waiters.Remove(w.element)
	w.element = nil
	w.flow.waiting -= w.Held
	q.mu.waiting -= w.Held
	q.mu.waiters--
	q.placeLocked(w.flow)
}

// makeRoomLocked refuses waiting claims until there is room for more bytes. It begins with the user
// who would have the most waiting bytes. If this is the user of f, it returns false.
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

// lastHolding returns the last waiter that holds memory. Claims that hold no memory are not
// refused.
func (f *flow) lastHolding() *Waiter {
	e := f.waiters.Back()
	for e.Value.(*Waiter).Held == 0 {
		e = e.Prev()
	}
	return e.Value.(*Waiter)
}

// sharesLocked reports whether rule 2 allows a user another claim of this size.
func (q *Queue) sharesLocked(f *flow, size int64) bool {
	return !q.shared || f.held == 0 || f.held+size <= q.mu.free-size
}

// needs returns what must be free before rule 2 allows a flow's first claim.
func (f *flow) needs() int64 { return f.held + 2*f.waiters.Front().Value.(*Waiter).Size }

// placeLocked puts a flow at its place in turns if the flow's first claim may be granted, and in
// greedy if it may not.
func (q *Queue) placeLocked(f *flow) {
	var in *heaped
	if first := f.waiters.Front(); first != nil {
		if in = &q.mu.greedy; q.sharesLocked(f, first.Value.(*Waiter).Size) {
			in = &q.mu.turns
		}
	}
	if in != nil && f.in == in {
		heap.Fix(in, f.place)
		return
	}
	if f.in != nil {
		heap.Remove(f.in, f.place)
	}
	if f.in = in; in == &q.mu.turns {
		f.next = max(f.next, q.mu.now)
		q.enterLocked(f)
	}
	if in != nil {
		heap.Push(in, f)
	}
}

// restLocked deletes a flow without claims. While other claims wait, it keeps the flow, because the
// flow has the time of the user's next turn. Otherwise a user who sends one expensive claim at a
// time would get too many turns.
func (q *Queue) restLocked(f *flow) {
	switch {
	case f.held > 0 || f.waiters.Len() > 0 || f.rested:
	case q.mu.waiters > 0 && f.next > q.mu.now && len(q.mu.rested) < flowsRested:
		f.rested = true
		q.mu.rested = append(q.mu.rested, f)
	case q.mu.flows[f.user] == f:
		delete(q.mu.flows, f.user)
	}
}
