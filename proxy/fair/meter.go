package fair

import (
	"context"
	"runtime"
	"sync"
	"time"
)

// Meter bounds the processor time of a read from the cache. A read begins without a slot, so
// that a cheap one waits for nothing and pays for one subtraction. When it has cost more than
// cheapWork, it takes a slot from a [fairQueue] and gives it back after a turn, so that users
// share the processors alike however dear each of their reads is. Nobody holds a slot who waits
// for anything else. The pieces of a long answer take turns, too, each for what its write costs.
//
// Costs are estimates, in nanoseconds, and known beforehand: a measured time would be longer on a
// busy machine, and make cheap reads dear just then.
type Meter struct {
	ctx    context.Context
	who    Claimant
	slots  *Queue // nil for no bound
	left   int64  // of the turn
	holds  bool   // a slot
	writes bool   // the answer is being written
	// attends tells that the client's leaving has to be watched for, which ends with stop.
	attends bool
	stop    func()
	base    context.Context // that ctx was made of
	// err says why the read was given up. Nothing that was made until then may be used.
	err error
}

// Bounds of a read's work, in nanoseconds.
const (
	// CheapWork is what a read may cost without a slot, TurnWork what it may cost before others
	// have their turn.
	CheapWork = 2e6
	TurnWork  = 2e6
	// writingWork is turnWork of an answer that is made while it is written: what a piece costs.
	writingWork = 5e5
)

// What work costs, in nanoseconds: lookCost for an object and compareCost for each comparison of a
// filter, the others for a byte.
const (
	LookCost    = 50
	CompareCost = 7
	CutCost     = 3
	GzipCost    = 10
	IndentCost  = 10
	YamlCost    = 200
	writeCost   = 3
)

// Claimant is a request that takes turns with others.
type Claimant interface {
	// User is the user that the turn counts for.
	User() string
	// Held is how many bytes of memory the request takes while it waits.
	Held() int64
	// Attended returns a context that ends when the client leaves or gives up. Stop must be
	// called before the client's connection is read again.
	Attended(ctx context.Context) (_ context.Context, stop func())
}

// NewMeter begins to count what a read costs. Attends tells that the client's leaving has to be
// watched for while the read waits.
func NewMeter(ctx context.Context, who Claimant, slots *Queue, attends bool) Meter {
	return Meter{ctx: ctx, base: ctx, who: who, slots: slots, left: CheapWork, attends: attends}
}

// NewSlots returns the slots of dear reads. One processor is left to the others: without any that is
// free, Go looks for what has come from the network every 10 ms only.
func NewSlots(room int64) *Queue {
	n := int64(max(1, runtime.GOMAXPROCS(0)-1))
	return NewQueue(n, n, room)
}

// Failed says why the read was given up; nil if it was not.
func (m *Meter) Failed() error { return m.err }

// Context ends when the read should be given up.
func (m *Meter) Context() context.Context { return m.ctx }

// Spend is called before work. It waits for a slot if the read is dear, and fails if the client has
// left meanwhile, or too many wait. A nil meter counts nothing.
func (m *Meter) Spend(cost int64) error {
	if m == nil {
		return nil
	}
	if m.left -= cost; m.left >= 0 {
		return nil
	}
	return m.turn(cost)
}

func (m *Meter) turn(cost int64) error {
	if m.slots == nil || m.err != nil {
		return m.err
	}
	m.Rest()
	if m.attends {
		m.ctx, m.stop = m.who.Attended(m.ctx)
		m.attends = false
	}
	c := Claim{User: m.who.User(), Size: 1, Cost: max(TurnWork, cost), Held: m.who.Held()}
	if m.writes {
		c.Cost, c.Held = max(writingWork, cost), 0 // what was begun is not refused
	}
	if m.err = m.ctx.Err(); m.err == nil {
		m.err = m.slots.Take(m.ctx, c)
	}
	if m.err != nil {
		return m.err
	}
	m.holds, m.left = true, c.Cost-cost
	return nil
}

// Rest gives the slot back, and the turn with it.
func (m *Meter) Rest() {
	if m != nil && m.holds {
		m.holds, m.left = false, 0
		m.slots.Give(m.who.User(), 1)
	}
}

// End is called when the answer is complete. The client's connection may be read then. The
// state of a watch, which is written later, takes turns as before.
func (m *Meter) End() {
	m.Rest()
	if m.stop != nil {
		m.stop()
		m.stop = nil
	}
	m.ctx, m.attends, m.writes = m.base, false, true
}

// write implements writing. Until end is called, it holds a slot, but not for longer than it costs:
// the client may not read.
func (m *Meter) write(size int) (end func(), err error) {
	m.Rest()
	if m.slots == nil {
		return func() {}, nil
	}
	return NewTurns(m.ctx, m.slots, m.who.User()).write(size)
}

// writeTurns are the turns that a user takes to write.
type writeTurns struct {
	ctx   context.Context
	slots *Queue
	user  string
}

// NewTurns returns the turns that a user takes to write.
func NewTurns(ctx context.Context, slots *Queue, user string) Turns {
	return writeTurns{ctx, slots, user}
}

// write implements writing. To write nothing takes none.
func (t writeTurns) write(size int) (end func(), err error) {
	if size == 0 {
		return func() {}, nil
	}
	cost := writeCost * int64(size)
	if err := t.slots.Take(t.ctx, Claim{User: t.user, Size: 1, Cost: cost}); err != nil {
		return nil, err
	}
	give := sync.OnceFunc(func() { t.slots.Give(t.user, 1) })
	late := time.AfterFunc(time.Duration(cost), give)
	return func() {
		late.Stop()
		give()
	}, nil
}
