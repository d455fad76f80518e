package proxy

import (
	"context"
	"errors"
	"runtime"
	"sync"
	"time"

	"github.com/watchproxy/watchproxy/proxy/wire"
)

// meter bounds the processor time of a read from the cache. A read begins without a slot, so
// that a cheap one waits for nothing and pays for one subtraction. When it has cost more than
// cheapWork, it takes a slot from a [fairQueue] and gives it back after a turn, so that users
// share the processors alike however dear each of their reads is. Nobody holds a slot who waits
// for anything else. The pieces of a long answer take turns, too, each for what its write costs.
//
// Costs are estimates, in nanoseconds, and known beforehand: a measured time would be longer on a
// busy machine, and make cheap reads dear just then.
type meter struct {
	ctx    context.Context
	req    *request
	slots  *fairQueue // nil for no bound
	left   int64      // of the turn
	holds  bool       // a slot
	writes bool       // the answer is being written
	// attends tells that the client's leaving has to be watched for, which ends with stop.
	attends bool
	stop    func()
	base    context.Context // that ctx was made of
	// err says why the read was given up. Nothing that was made until then may be used.
	err error
}

const (
	// cheapWork is what a read may cost without a slot, turnWork what it may cost before others
	// have their turn, in nanoseconds.
	cheapWork = 2e6
	turnWork  = 2e6
	// writingWork is turnWork of an answer that is made while it is written: what a piece costs.
	writingWork = 5e5
)

// What work costs, in nanoseconds: lookCost for an object and compareCost for each comparison of a
// filter, the others for a byte.
const (
	lookCost    = 50
	compareCost = 7
	cutCost     = 3
	gzipCost    = 10
	indentCost  = 10
	yamlCost    = 200
	writeCost   = 3
)

// newSlots are the slots of dear reads. One processor is left to the others: without any that is
// free, Go looks for what has come from the network every 10 ms only.
func newSlots(room int64) *fairQueue {
	n := int64(max(1, runtime.GOMAXPROCS(0)-1))
	return newFairQueue(n, n, room)
}

// meter begins to count what a read costs.
func (s *Server) meter(ctx context.Context, r *read) {
	r.meter = meter{ctx: ctx, base: ctx, req: r.request, slots: s.slots, left: cheapWork, attends: r.kind() != wire.Watch}
}

// spend is called before work. It waits for a slot if the read is dear, and fails if the client has
// left meanwhile, or too many wait. A nil meter counts nothing.
func (m *meter) spend(cost int64) error {
	if m == nil {
		return nil
	}
	if m.left -= cost; m.left >= 0 {
		return nil
	}
	return m.turn(cost)
}

func (m *meter) turn(cost int64) error {
	if m.slots == nil || m.err != nil {
		return m.err
	}
	m.rest()
	if m.attends {
		m.ctx, m.stop = m.req.attended(m.ctx)
		m.attends = false
	}
	c := claim{user: m.req.identity.name(), size: 1, cost: max(turnWork, cost), held: m.req.held()}
	if m.writes {
		c.cost, c.held = max(writingWork, cost), 0 // what was begun is not refused
	}
	if m.err = m.ctx.Err(); m.err == nil {
		m.err = m.slots.take(m.ctx, c)
	}
	if m.err != nil {
		return m.err
	}
	m.holds, m.left = true, c.cost-cost
	return nil
}

// rest gives the slot back, and the turn with it.
func (m *meter) rest() {
	if m != nil && m.holds {
		m.holds, m.left = false, 0
		m.slots.give(m.req.identity.name(), 1)
	}
}

// end is called when the answer is complete. The client's connection may be read then. The
// state of a watch, which is written later, takes turns as before.
func (m *meter) end() {
	m.rest()
	if m.stop != nil {
		m.stop()
		m.stop = nil
	}
	m.ctx, m.attends, m.writes = m.base, false, true
}

// write implements writing. Until end is called, it holds a slot, but not for longer than it costs:
// the client may not read.
func (m *meter) write(size int) (end func(), err error) {
	m.rest()
	if m.slots == nil {
		return func() {}, nil
	}
	return writeTurns{m.ctx, m.slots, m.req.identity.name()}.write(size)
}

// writeTurns are the turns that a user takes to write.
type writeTurns struct {
	ctx   context.Context
	slots *fairQueue
	user  string
}

// write implements writing. To write nothing takes none.
func (t writeTurns) write(size int) (end func(), err error) {
	if size == 0 {
		return func() {}, nil
	}
	cost := writeCost * int64(size)
	if err := t.slots.take(t.ctx, claim{user: t.user, size: 1, cost: cost}); err != nil {
		return nil, err
	}
	give := sync.OnceFunc(func() { t.slots.give(t.user, 1) })
	late := time.AfterFunc(time.Duration(cost), give)
	return func() {
		late.Stop()
		give()
	}, nil
}

// gaveUp answers a request that has waited in vain.
func (s *Server) gaveUp(req *request, err error, limit, message string) *response {
	if errors.Is(err, context.Canceled) {
		return clientGone()
	}
	return s.tooMany(req, limit, message)
}

// requestWait is how long a request waits for its turn at most: kube-apiserver gives a request up
// after that long.
const requestWait = time.Minute
