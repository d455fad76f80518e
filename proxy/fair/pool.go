package fair

import (
	"container/list"
	"context"
	"errors"
	"sync"
)

// Pool hands out a capacity, in slots or bytes, to users. A semaphore would serve claims in order of
// arrival, so the user with the most claims would get most of the capacity.
//
// Invariants:
//
//  1. Users never hold more than the capacity.
//  2. In a shared pool, a user who holds nothing may be granted any claim. Further claims are granted
//     only if the user then holds no more than is free. So one user gets half, two users get a third
//     each, and others find room, whatever the number of users.
//  3. Users with waiting claims take turns, one claim each. A user's claims are granted in order of
//     arrival. A claim in its turn waits only for room, and no other that may wait overtakes it, so
//     small claims do not starve a large one. Those that cannot wait (Try) take what is free.
//  4. Waiting claims hold at most room bytes of memory, which users share as in 2.
//  5. The pool knows only users who hold something or wait.
type Pool struct {
	Capacity int64
	shared   bool  // 2 applies
	room     *Pool // memory of waiting claims; nil for claims that hold none

	mu struct {
		sync.Mutex
		free    int64
		users   map[string]*user
		turns   list.List // of the users whose claims wait, in the order of their turns
		waiters int
	}
}

// Claim is a user's claim to a part of a capacity.
type Claim struct {
	User string
	Size int64 // part of the capacity
	Held int64 // bytes of memory that the claim holds while it waits
}

var (
	// ErrCrowded says that a claim was refused because too many claims wait.
	ErrCrowded = errors.New("too many wait already")
	// errNeverFits says that a claim is larger than the capacity.
	errNeverFits = errors.New("larger than the capacity")
)

// user is what a pool knows of a user.
type user struct {
	name    string
	held    int64         // part of the capacity
	waiters list.List     // of *Waiter
	turn    *list.Element // of the pool's turns; nil if no claim waits
}

// Waiter is a waiting claim.
type Waiter struct {
	Claim
	user    *user
	element *list.Element // nil once the claim is granted or withdrawn
	granted chan struct{}
}

// NewPool returns a pool. If it is shared, no user gets all of the capacity. Waiting claims may hold
// at most room bytes of memory.
func NewPool(capacity int64, shared bool, room int64) *Pool {
	p := &Pool{Capacity: capacity, shared: shared}
	p.mu.free, p.mu.users = capacity, map[string]*user{}
	if room > 0 {
		p.room = NewPool(room, true, 0)
	}
	return p
}

// Take waits until a claim is granted or ctx ends. A granted claim must be returned with Give.
func (p *Pool) Take(ctx context.Context, c Claim) error {
	w, err := p.Enter(c)
	if w != nil {
		err = p.Wait(ctx, w)
	}
	return err
}

// Try grants a claim if there is room, also if other claims wait. Otherwise a large claim that waits
// would stop all who cannot wait.
func (p *Pool) Try(c Claim) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	u := p.userLocked(c.User)
	defer p.forgetLocked(u)
	ok := p.tryLocked(u, c.Size)
	if ok && u.turn != nil {
		p.serveLocked() // the user's waiting claim, which has held others up, may be greedy now (2)
	}
	return ok
}

func (p *Pool) tryLocked(u *user, size int64) bool {
	if size > p.mu.free || !p.mayLocked(u, size) {
		return false
	}
	u.held += size
	p.mu.free -= size
	return true
}

// mayLocked reports whether rule 2 allows a user another claim.
func (p *Pool) mayLocked(u *user, size int64) bool {
	return !p.shared || u.held == 0 || u.held+size <= p.mu.free-size
}

func (p *Pool) userLocked(name string) *user {
	u := p.mu.users[name]
	if u == nil {
		u = &user{name: name}
		p.mu.users[name] = u
	}
	return u
}

func (p *Pool) forgetLocked(u *user) {
	if u.held == 0 && u.turn == nil {
		delete(p.mu.users, u.name)
	}
}

// Enter grants a claim without a wait, fails, or returns a waiter for Wait.
func (p *Pool) Enter(c Claim) (*Waiter, error) {
	if c.Size > p.Capacity {
		return nil, errNeverFits
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	u := p.userLocked(c.User)
	defer p.forgetLocked(u)
	if u.turn == nil && p.nextLocked() == nil && p.tryLocked(u, c.Size) {
		return nil, nil
	}
	if c.Held > 0 && (p.room == nil || !p.room.Try(Claim{User: c.User, Size: c.Held})) {
		return nil, ErrCrowded
	}
	w := &Waiter{Claim: c, user: u, granted: make(chan struct{})}
	w.element = u.waiters.PushBack(w)
	if u.turn == nil {
		u.turn = p.mu.turns.PushBack(u)
	}
	p.mu.waiters++
	return w, nil
}

// Wait waits until the claim of a waiter is granted or ctx ends.
func (p *Pool) Wait(ctx context.Context, w *Waiter) error {
	select {
	case <-w.granted:
		return nil
	case <-ctx.Done():
		p.leave(w)
		return ctx.Err()
	}
}

// leave withdraws a waiting claim. If the claim was granted at the same time, leave gives it back.
func (p *Pool) leave(w *Waiter) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if w.element == nil {
		p.giveLocked(w.user, w.Size)
		return
	}
	first := p.mu.free > 0 && w == p.nextLocked()
	p.dropLocked(w)
	if u := w.user; first && u.turn != nil { // it has had its turn: others waited while there was room
		p.mu.turns.MoveToBack(u.turn)
	}
	p.serveLocked()
	p.forgetLocked(w.user)
}

// Give returns size of a user's granted claims to the pool.
func (p *Pool) Give(name string, size int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if size > 0 {
		p.giveLocked(p.mu.users[name], size)
	}
}

func (p *Pool) giveLocked(u *user, size int64) {
	if u == nil || u.held < size {
		panic("BUG: more is given back than was taken")
	}
	u.held -= size
	p.mu.free += size
	p.serveLocked()
	p.forgetLocked(u)
}

// Taken returns the part of the capacity that users hold.
func (p *Pool) Taken() int64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.Capacity - p.mu.free
}

// Waiting returns the number of waiting claims.
func (p *Pool) Waiting() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.mu.waiters
}

// nextLocked returns the claim that waits for nothing but its turn and room, or nil. The users who are
// passed over wait until more is free (2). Each of them holds a part of the capacity.
func (p *Pool) nextLocked() *Waiter {
	for e := p.mu.turns.Front(); e != nil; e = e.Next() {
		u := e.Value.(*user)
		if w := u.waiters.Front().Value.(*Waiter); p.mayLocked(u, w.Size) {
			return w
		}
	}
	return nil
}

// serveLocked grants claims in turn while there is room.
func (p *Pool) serveLocked() {
	for w := p.nextLocked(); w != nil && p.tryLocked(w.user, w.Size); w = p.nextLocked() {
		p.dropLocked(w)
		if w.user.turn != nil {
			p.mu.turns.MoveToBack(w.user.turn)
		}
		close(w.granted)
	}
}

// dropLocked removes a waiter.
func (p *Pool) dropLocked(w *Waiter) {
	u := w.user
	u.waiters.Remove(w.element)
	w.element = nil
	p.mu.waiters--
	if u.waiters.Len() == 0 {
		p.mu.turns.Remove(u.turn)
		u.turn = nil
	}
	if w.Held > 0 {
		p.room.Give(w.User, w.Held)
	}
}
