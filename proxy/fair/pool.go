package fair

import (
	"container/list"
	"context"
	"errors"
	"sync"
)

// Pool hands out a capacity, in slots or bytes, to users. A semaphore would serve claims in order
// of arrival, so the user with the most claims would get most of the capacity.
//
// Invariants:
//
//  1. Users never hold more than the capacity.
//  2. In a shared pool, a user who holds nothing may be granted any claim. Further claims are
//     granted only if the user then holds no more than is free. So one user gets half, two users
//     get a third each, and others find room, whatever the number of users.
//  3. Users with waiting claims take turns, one claim each. A user's claims are granted in order of
//     arrival. A claim in its turn waits only for room, and no other that may wait overtakes it, so
//     small claims do not starve a large one. Those that cannot wait (Try) take what is free. A
//     user who must wait for more to be free (2) loses the turn, and gets the next one when enough
//     is.
//  4. The pool knows only users who hold something or wait.
//
// Waiting claims have no bound here: each is that of a request whose memory counts already.
type Pool struct {
	Capacity int64
	shared   bool // 2 applies

	mu struct {
		sync.Mutex
		free    int64
		users   map[string]*user
		turns   list.List // of the users whose claims wait for a turn or for room, in order
		greedy  list.List // of the users whose claims wait until more is free (2)
		waiters int
	}
}

var errNeverFits = errors.New("larger than the capacity")

type user struct {
	name    string
	held    int64         // part of the capacity
	waiters list.List     // of *waiter
	in      *list.List    // the pool's turns or greedy; nil if no claim waits
	place   *list.Element // of that list
}

type waiter struct {
	size    int64
	user    *user
	element *list.Element // nil once the claim is granted or withdrawn
	granted chan struct{}
}

// NewPool returns a pool. If it is shared, no user gets all of the capacity.
func NewPool(capacity int64, shared bool) *Pool {
	p := &Pool{Capacity: capacity, shared: shared}
	p.mu.free, p.mu.users = capacity, map[string]*user{}
	return p
}

// Take waits until a user's claim is granted or ctx ends. A granted claim must be given back.
func (p *Pool) Take(ctx context.Context, name string, size int64) error {
	w, err := p.enter(name, size)
	if w == nil {
		return err
	}
	select {
	case <-w.granted:
		return nil
	case <-ctx.Done():
		p.leave(w)
		return ctx.Err()
	}
}

// Try grants a claim if there is room, also if other claims wait. Otherwise a large claim that
// waits would stop all who cannot wait.
func (p *Pool) Try(name string, size int64) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	u := p.userLocked(name)
	defer p.forgetLocked(u)
	ok := p.tryLocked(u, size)
	p.serveLocked() // a claim that has held others up may be greedy now (2)
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
	if u.held == 0 && u.in == nil {
		delete(p.mu.users, u.name)
	}
}

// enter grants a claim without a wait, fails, or returns a waiter.
func (p *Pool) enter(name string, size int64) (*waiter, error) {
	if size > p.Capacity {
		return nil, errNeverFits
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	u := p.userLocked(name)
	defer p.forgetLocked(u)
	if u.in == nil && p.mu.turns.Len() == 0 && p.tryLocked(u, size) {
		return nil, nil
	}
	w := &waiter{
		size:    size,
		user:    u,
		granted: make(chan struct{}),
	}
	w.element = u.waiters.PushBack(w)
	p.mu.waiters++
	if u.in == nil {
		p.placeLocked(u, &p.mu.turns)
		p.serveLocked()
	}
	return w, nil
}

// leave withdraws a waiting claim. If the claim was granted at the same time, leave gives it back.
func (p *Pool) leave(w *waiter) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if w.element == nil {
		p.giveLocked(w.user, w.size)
		return
	}
	u := w.user
	looked := w == u.first() &&
		(u.in == &p.mu.greedy || u.place == p.mu.turns.Front() && p.mu.free > 0)
	p.dropLocked(w)
	if looked && u.in != nil { // others waited while there was room, or the next claim is smaller
		p.placeLocked(u, &p.mu.turns)
	}
	p.serveLocked()
	p.forgetLocked(u)
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
	for e := p.mu.greedy.Front(); e != nil; {
		g := e.Value.(*user)
		if e = e.Next(); p.mayLocked(g, g.first().size) {
			p.placeLocked(g, &p.mu.turns)
		}
	}
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

// serveLocked grants claims in turn while there is room. The first that stays waits only for room.
func (p *Pool) serveLocked() {
	for e := p.mu.turns.Front(); e != nil; e = p.mu.turns.Front() {
		u := e.Value.(*user)
		w := u.first()
		if !p.mayLocked(u, w.size) {
			p.placeLocked(u, &p.mu.greedy)
			continue
		}
		if !p.tryLocked(u, w.size) {
			return
		}
		if p.dropLocked(w); u.in != nil {
			p.placeLocked(u, &p.mu.turns)
		}
		close(w.granted)
	}
}

// placeLocked puts a user behind all others in a list, or in none.
func (p *Pool) placeLocked(u *user, in *list.List) {
	if u.in != nil {
		u.in.Remove(u.place)
	}
	if u.in, u.place = in, nil; in != nil {
		u.place = in.PushBack(u)
	}
}

func (p *Pool) dropLocked(w *waiter) {
	u := w.user
	u.waiters.Remove(w.element)
	w.element = nil
	p.mu.waiters--
	if u.waiters.Len() == 0 {
		p.placeLocked(u, nil)
	}
}

func (u *user) first() *waiter { return u.waiters.Front().Value.(*waiter) }
