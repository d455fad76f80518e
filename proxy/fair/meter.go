package fair

import (
	"context"
	"sync/atomic"
	"time"
)

// Meter limits the processor time of a read from the cache. A read begins without a slot. A cheap
// read never waits, and its meter does one subtraction. Once a read has cost more than CheapWork,
// it waits for one of the [Slots]. It gives the slot back after its turn. So users get equal
// shares of the processors, however expensive their reads are. A read gives its slot back before it
// waits for anything else. A long response is written in turns, each of which costs as much as
// writing its pieces. A turn of one piece made the threads of four readers wake each other for each
// 64 KiB: a list over HTTP/1.1 and TLS took the proxy 34 ms of processor time, and 25 ms in longer turns.
//
// Costs are fixed estimates in nanoseconds. Measured times would grow on a busy machine, and cheap
// reads would then count as expensive.
type Meter struct {
	ctx    context.Context
	base   context.Context // the argument of NewMeter; ctx may also end when the client leaves
	who    Claimant
	slots  *Slots // nil means no bound
	left   int64  // remaining cost of the turn
	held   *Pool  // of which the read has a slot, or nil
	writes bool   // the response is being written
	// attends is true if Attended must be called before the first wait. stop is the function that
	// Attended returned.
	attends bool
	stop    func()
	// err says why the read was given up. The read's partial result must not be used.
	err error
}

// Bounds of a read's work, in nanoseconds.
const (
	// CheapWork is the maximum cost of a read without a slot.
	CheapWork = 2e6
	// TurnWork is the cost of a turn before the response begins. writingWork is the cost of a turn
	// while the response is written. If a single step costs more, the turn costs as much as the
	// step.
	TurnWork    = 2e6
	writingWork = 5e5
	// longWork is the cost from which a turn is long. A single large object can make it so.
	longWork = 1e7
)

// Costs in nanoseconds. LookCost applies to each object, and CompareCost to each comparison in a
// filter. All other costs apply to each byte.
const (
	LookCost     = 50
	CompareCost  = 7
	CutCost      = 3
	MetadataCost = 75 // of custom resources, whose metadata is decoded
	GzipCost     = 10
	GzipOnceCost = 3 // for bodies made for one request
	writeCost    = 3
)

// Claimant is a request that takes turns with others.
type Claimant interface {
	// User returns the user who takes the turn.
	User() string
	// Attended returns a context that ends when the client leaves or gives up. Stop must be called
	// before the client's connection is read again.
	Attended(ctx context.Context) (_ context.Context, stop func())
}

// NewMeter returns a meter for a read. If attends is true, a waiting read is given up when its
// client leaves.
func NewMeter(ctx context.Context, who Claimant, slots *Slots, attends bool) Meter {
	return Meter{ctx: ctx, base: ctx, who: who, slots: slots, left: CheapWork, attends: attends}
}

// Slots are for turns of expensive reads. Long turns have slots of their own. Otherwise a list of large
// objects would delay each piece of all other lists by a long turn.
type Slots struct{ Short, Long *Pool }

// NewSlots returns n slots of each kind.
func NewSlots(n int64) *Slots { return &Slots{NewPool(n, false), NewPool(n, false)} }

// of returns the slots for a turn.
func (s *Slots) of(cost int64) *Pool {
	if cost > longWork {
		return s.Long
	}
	return s.Short
}

// Failed returns the reason why the read was given up, or nil.
func (m *Meter) Failed() error { return m.err }

// Context returns a context that ends when the read should be given up.
func (m *Meter) Context() context.Context { return m.ctx }

// Spend must be called before each step of work. If the read is expensive, Spend waits for a slot.
// It fails if the client leaves meanwhile. A nil meter counts nothing.
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
	m.ReleaseSlot()
	if m.attends {
		m.ctx, m.stop = m.who.Attended(m.ctx)
		m.attends = false
	}
	turn := max(TurnWork, cost)
	if m.writes {
		turn = max(writingWork, cost)
	}
	slots := m.slots.of(turn)
	if m.err = m.ctx.Err(); m.err == nil {
		m.err = slots.Take(m.ctx, m.who.User(), 1)
	}
	if m.err != nil {
		return m.err
	}
	m.held, m.left = slots, turn-cost
	return nil
}

// ReleaseSlot gives the slot back and ends the turn.
func (m *Meter) ReleaseSlot() {
	if m != nil && m.held != nil {
		m.held.Give(m.who.User(), 1)
		m.held, m.left = nil, 0
	}
}

// End must be called when the response is complete. After that, the client's connection may be read
// again. A response that is written later, such as the state of a watch, still needs turns.
func (m *Meter) End() {
	m.ReleaseSlot()
	if m.stop != nil {
		m.stop()
		m.stop = nil
	}
	m.ctx, m.attends, m.writes = m.base, false, true
}

// write waits for a turn to write a piece of size bytes, and as many of the rest as a turn has time for.
// An empty write needs no turn.
func (m *Meter) write(size int, rest int64) (*writeTurn, error) {
	m.ReleaseSlot()
	if m.slots == nil || size == 0 {
		return nil, nil //nolint:nilnil // no turn
	}
	piece := writeCost * int64(size)
	t := &writeTurn{user: m.who.User(), left: max(0, min(TurnWork, writeCost*rest)-piece)}
	t.slots = m.slots.of(piece + t.left)
	if err := t.slots.Take(m.ctx, t.user, 1); err != nil {
		return nil, err
	}
	t.expiry = time.AfterFunc(time.Duration(piece), t.give)
	return t, nil
}

// writeTurn is a turn in which pieces of a response are written. It ends early if a piece takes
// longer than estimated, because a client might not read. A nil turn has no slot.
type writeTurn struct {
	slots  *Pool
	user   string
	left   int64 // remaining cost
	given  atomic.Bool
	expiry *time.Timer
}

// goesOn reports whether another piece belongs to the turn.
func (t *writeTurn) goesOn(size int) bool {
	if t == nil || t.given.Load() {
		return false
	}
	cost := writeCost * int64(size)
	if t.left -= cost; t.left < 0 {
		return false
	}
	t.expiry.Reset(time.Duration(cost))
	return true
}

// rests must be called after each piece.
func (t *writeTurn) rests() {
	if t != nil {
		t.expiry.Stop()
	}
}

func (t *writeTurn) end() {
	if t != nil {
		t.expiry.Stop()
		t.give()
	}
}

// give gives the slot back, once.
func (t *writeTurn) give() {
	if !t.given.Swap(true) {
		t.slots.Give(t.user, 1)
	}
}
