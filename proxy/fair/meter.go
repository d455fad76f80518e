package fair

import (
	"context"
	"sync/atomic"
	"time"
)

// Meter limits the processor time of a read from the cache. A read begins without a slot. A cheap
// read never waits, and its meter does one subtraction. After Turn bytes, a read waits for one of
// the [Slots], and gives it back after its turn, which is as long. So users get equal shares of the
// processors, however expensive their reads are.
//
// Work counts in bytes touched. Measured times would grow on a busy machine, and cheap reads would
// then count as expensive.
type Meter struct {
	ctx   context.Context
	base  context.Context // the argument of NewMeter; ctx may also end when the client leaves
	who   Claimant
	slots *Slots // nil means no bound
	left  int64  // remaining bytes of the turn
	held  *slot  // nil if the read has none
	// attends is true if Attended must be called before the first wait. stop is what it returned.
	attends bool
	stop    func()
	// err says why the read was given up. The read's partial result must not be used.
	err error
}

const (
	// Turn is the length of a turn, and of the work that needs no slot, in bytes. It takes some two
	// milliseconds. If a single step is longer, the turn is one step.
	Turn = 512 << 10
	// longStep is the length from which a step is long. A single large object can make it so.
	longStep = 4 << 20
	// writeTime is how long pieces of a response may hold a slot while they are written. It is
	// several times as long as a turn takes if the client reads.
	writeTime = time.Millisecond
)

const (
	// Look is the cost of a look at an object, in bytes.
	Look = 16
	// Compare is the cost of a comparison in a filter, in bytes.
	Compare = 2
	// Compress is how often a page's bytes are touched when it is compressed for all its readers.
	Compress = 2
	// Decode is how often the bytes of an object are touched when it is decoded.
	Decode = 24
)

// Claimant is a request that takes turns with others.
type Claimant interface {
	// User returns the user who takes the turn.
	User() string
	// Attended returns a context that ends when the client leaves or gives up. Stop must be called
	// before the client's connection is read again.
	Attended(ctx context.Context) (_ context.Context, stop func())
}

// NewMeter returns a meter for a read. If it attends, a wait is given up when the client leaves.
func NewMeter(ctx context.Context, who Claimant, slots *Slots, attends bool) Meter {
	return Meter{
		ctx:     ctx,
		base:    ctx,
		who:     who,
		slots:   slots,
		left:    Turn,
		attends: attends,
	}
}

// Slots are for turns of expensive reads. Long steps have their own (see the package's doc).
type Slots struct{ Short, Long *Pool }

// NewSlots returns n slots of each kind.
func NewSlots(n int64) *Slots { return &Slots{NewPool(n, false), NewPool(n, false)} }

// Failed returns the reason why the read was given up, or nil.
func (m *Meter) Failed() error { return m.err }

// Context returns a context that ends when the read should be given up.
func (m *Meter) Context() context.Context { return m.ctx }

// Spend must be called before each step of work, with the bytes that it touches. If the read is
// expensive, it waits for a slot, and fails if the client leaves. A nil meter counts nothing.
func (m *Meter) Spend(bytes int64) error {
	if m == nil {
		return nil
	}
	if m.left -= bytes; m.left >= 0 && !m.held.lost() {
		return nil
	}
	return m.turn(bytes)
}

func (m *Meter) turn(bytes int64) error {
	if m.slots == nil {
		return nil
	}
	m.ReleaseSlot()
	if m.attends {
		m.ctx, m.stop = m.who.Attended(m.ctx)
		m.attends = false
	}
	s := &slot{of: m.slots.Short, user: m.who.User()}
	if bytes > longStep {
		s.of = m.slots.Long
	}
	if m.err = m.ctx.Err(); m.err == nil {
		m.err = s.of.Take(m.ctx, s.user, 1)
	}
	if m.err != nil {
		return m.err
	}
	m.held, m.left = s, max(0, Turn-bytes)
	return nil
}

// ReleaseSlot gives the slot back and ends the turn.
func (m *Meter) ReleaseSlot() {
	if m != nil && m.held != nil {
		m.held.give()
		m.held, m.left = nil, 0
	}
}

// End must be called when the response is complete, before the client's connection is read again.
// Later writes, such as the state of a watch, still need turns, except for the first piece.
func (m *Meter) End() {
	m.ReleaseSlot()
	if m.stop != nil {
		m.stop()
		m.stop = nil
	}
	m.ctx, m.attends, m.left = m.base, false, WriteSize
}

// slot is a slot for one turn. It is given back once, by the read, or because the client of a piece
// does not read. A nil slot is none.
type slot struct {
	of      *Pool
	user    string
	given   atomic.Bool
	expires bool // at the end of writeTime
}

func (s *slot) lost() bool { return s != nil && s.given.Load() }

func (s *slot) expire() {
	if s != nil && !s.expires {
		s.expires = true
		time.AfterFunc(writeTime, s.give)
	}
}

func (s *slot) give() {
	if !s.given.Swap(true) {
		s.of.Give(s.user, 1)
	}
}
