package listen

import (
	"context"
	"runtime/debug"
	"sync"
	"sync/atomic"

	"go.uber.org/zap"

	"github.com/watchproxy/watchproxy/proxy/conn"
	"github.com/watchproxy/watchproxy/proxy/exchange"
	"github.com/watchproxy/watchproxy/proxy/watch"
)

// pump writes what has happened to the watches that it concerns. A watch over HTTP/1 has no
// goroutine that waits for events: to wake one for each, and let it go to sleep again, was a
// fifth of what a delivery took. The cursor puts the watch into a queue, and a goroutine for
// each processor takes watches out and does what there is to do for them.
//
// It never waits for a client. What the kernel does not take at once is written by a
// goroutine that the watch gets for the purpose, until it has caught up. So is an event that is
// larger than a piece. A watch whose filter is dear has a goroutine of its own all the time.
//
// Until the kernel has taken what was written, nothing more is polled: the socket keeps one
// piece.
type pump struct {
	log  *zap.Logger
	most int // how many goroutines work
	mu   struct {
		sync.Mutex
		queue   []*pumpedWatch // from head on
		head    int
		running int
	}
}

// pumpedWatch is a watch that a pump writes. At any time one goroutine at most is at work on it.
type pumpedWatch struct {
	*watch.Watch
	pump  *pump
	ctx   context.Context // ends when the client leaves
	conn  *conn.Conn
	out   *exchange.ChunkWriter
	state atomic.Int32
	over  chan struct{} // closed when nobody will work on it again
}

// The states of a pumpedWatch watch.
const (
	resting int32 = iota // nothing to do
	queued               // in the pump's queue
	working              // somebody is at work on it
	again                // and there is more to do since
)

// pumpBatch is how many watches are taken from the queue at a time.
const pumpBatch = 16

// ready puts the watch into the queue unless it is there. It does not block.
func (p *pumpedWatch) ready() {
	for {
		switch state := p.state.Load(); state {
		case resting:
			if p.state.CompareAndSwap(resting, queued) {
				p.pump.add(p)
				return
			}
		case working:
			if p.state.CompareAndSwap(working, again) {
				return
			}
		default:
			return
		}
	}
}

// rest ends the work on a watch.
func (p *pumpedWatch) rest() {
	if !p.state.CompareAndSwap(working, resting) {
		p.state.Store(queued)
		p.pump.add(p)
	}
}

func (p *pump) add(w *pumpedWatch) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if n := len(p.mu.queue); n == cap(p.mu.queue) && p.mu.head > n/2 {
		rest := copy(p.mu.queue, p.mu.queue[p.mu.head:])
		clear(p.mu.queue[rest:])
		p.mu.queue, p.mu.head = p.mu.queue[:rest], 0
	}
	p.mu.queue = append(p.mu.queue, w)
	if p.mu.running < p.most && p.mu.running < len(p.mu.queue)-p.mu.head {
		p.mu.running++
		go p.run()
	}
}

// run works until the queue is empty.
func (p *pump) run() {
	var batch [pumpBatch]*pumpedWatch
	s := watch.NewScratch()
	defer s.Free()
	for {
		n := p.take(&batch)
		if n == 0 {
			return
		}
		for i, w := range batch[:n] {
			w.work(s)
			batch[i] = nil
		}
	}
}

// take takes watches from the front of the queue. If there are none, the goroutine counts as
// ended.
func (p *pump) take(batch *[pumpBatch]*pumpedWatch) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	n := copy(batch[:], p.mu.queue[p.mu.head:])
	clear(p.mu.queue[p.mu.head:][:n])
	if p.mu.head += n; p.mu.head == len(p.mu.queue) {
		p.mu.queue, p.mu.head = p.mu.queue[:0], 0
	}
	if n == 0 {
		p.mu.running--
	}
	return n
}

// takes tells whether a watch over a connection is for a pump.
func (*pump) takes(w *watch.Watch, c *conn.Conn) bool { return c.Pumpable() && w.Cheap() }

// serve has the pump write a watch until it ends. Meanwhile the caller's goroutine waits for
// the client to leave.
func (p *pump) serve(ctx context.Context, leave context.CancelFunc, c *conn.Conn, w *watch.Watch, out *exchange.ChunkWriter) {
	defer w.Close()
	if !w.Open(ctx, out) {
		return
	}
	own := &pumpedWatch{Watch: w, pump: p, ctx: ctx, conn: c, out: out, over: make(chan struct{})}
	c.Unlimited()
	c.StartNonblocking()
	w.Cursor.Notify(own.ready)
	own.ready() // for what has happened before
	c.ReadUntilGone(func() {
		if c.Unsettled() { // TLS has answered something
			own.ready()
		}
	})
	leave()
	<-own.over
	c.StopNonblocking()
}

// work does what there is to do for a watch, as far as the client takes it at once.
func (p *pumpedWatch) work(s *watch.Scratch) {
	p.state.Store(working)
	if p.conn.Unsettled() { // TLS has answered something
		go p.catchUp()
		return
	}
	on, behind := p.step(s)
	switch {
	case !on:
		p.end()
	case behind || p.conn.Unsettled():
		go p.catchUp()
	default:
		p.rest()
	}
}

// step is a turn of the watch.
func (p *pumpedWatch) step(s *watch.Scratch) (on, behind bool) {
	defer p.recovered()
	return p.Turn(p.ctx, p.out, s)
}

// catchUp works on a watch at the client's speed until nothing more is there to do.
func (p *pumpedWatch) catchUp() {
	if !p.caughtUp() {
		p.end()
		return
	}
	p.rest()
}

func (p *pumpedWatch) caughtUp() (on bool) {
	defer p.recovered()
	p.out.Settle = p.conn.Settle
	defer func() { p.out.Settle = nil }()
	for {
		if p.conn.Settle() != nil {
			return false
		}
		on, behind := p.Turn(p.ctx, p.out, nil)
		if !on || !behind && !p.conn.Unsettled() {
			return on
		}
	}
}

// end lets the goroutine go on that waits for the client to leave.
func (p *pumpedWatch) end() {
	close(p.over)
	p.conn.EndRead()
}

// recovered ends a watch, and no more, if something went wrong with it.
func (p *pumpedWatch) recovered() {
	if r := recover(); r != nil {
		p.pump.log.Error("panic in a watch", zap.Any("panic", r), zap.ByteString("stack", debug.Stack()))
	}
}
