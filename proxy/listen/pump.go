package listen

import (
	"context"
	"runtime/debug"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"github.com/watchproxy/watchproxy/proxy/conn"
	"github.com/watchproxy/watchproxy/proxy/exchange"
	"github.com/watchproxy/watchproxy/proxy/watch"
)

// pump writes events to the watches that they concern. A watch over HTTP/1 has no goroutine that
// waits for events, because waking a goroutine for each event took a fifth of a delivery's time.
// Instead the cursor puts the watch into a queue. One goroutine for each processor takes watches
// from the queue and works on them.
//
// The pump never waits for a client. If the kernel does not take everything at once, the watch gets
// a goroutine of its own until it has caught up. Such a goroutine also
// writes an event that is larger than a piece (64 KiB). A watch with an expensive filter always has its own goroutine.
//
// The pump polls a watch again only after the kernel has taken all bytes written so far. So the
// proxy buffers at most one piece for each connection.
type pump struct {
	watch.Pump[*pumpedWatch]
	log *zap.Logger
}

// pumpedWatch is a watch that a pump writes. At most one goroutine at a time works on it.
type pumpedWatch struct {
	*watch.Watch
	pump  *pump
	ctx   context.Context // ends when the client leaves
	conn  *conn.Conn
	out   *exchange.ChunkWriter
	state atomic.Int32
	over  chan struct{} // closed when no goroutine will work on it again
}

// The states of a pumpedWatch.
const (
	resting int32 = iota // nothing to do
	queued               // in the pump's queue
	working              // a goroutine works on it
	again                // a goroutine works on it, and there is more to do
)

// ready puts the watch into the queue unless it is already there. It does not block.
func (p *pumpedWatch) ready() {
	for {
		switch state := p.state.Load(); state {
		case resting:
			if p.state.CompareAndSwap(resting, queued) {
				p.pump.Add(p)
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
		p.pump.Add(p)
	}
}

// serve has the pump write a watch until the watch ends. Meanwhile the caller's goroutine waits for
// the client to leave.
func (p *pump) serve(ctx context.Context, leave context.CancelFunc, c *conn.Conn, w *watch.Watch, out *exchange.ChunkWriter) {
	defer w.Close()
	if !w.Open(ctx, out) {
		return
	}
	pumped := &pumpedWatch{Watch: w, pump: p, ctx: ctx, conn: c, out: out, over: make(chan struct{})}
	c.ReadUntil(time.Time{})
	c.StartNonblocking()
	w.Cursor.Notify(pumped.ready)
	pumped.ready() // for events that came before Notify
	c.DiscardInput(func() {
		if c.Unsettled() { // TLS has written an answer
			pumped.ready()
		}
	})
	leave()
	<-pumped.over
	c.StopNonblocking()
}

// Work implements watch.Worker. It does a turn of the watch. If the client does not take all bytes
// at once, catchUp goes on.
func (p *pumpedWatch) Work(s *watch.Scratch) {
	p.state.Store(working)
	if p.conn.Unsettled() { // TLS has written an answer
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

// step does a turn of the watch.
func (p *pumpedWatch) step(s *watch.Scratch) (on, behind bool) {
	defer p.recovered()
	return p.Turn(p.ctx, p.out, s)
}

// catchUp works on a watch at the client's speed until there is nothing more to do.
func (p *pumpedWatch) catchUp() {
	if p.caughtUp() {
		p.rest()
	} else {
		p.end()
	}
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

// end wakes the goroutine that waits for the client to leave.
func (p *pumpedWatch) end() {
	close(p.over)
	p.conn.Interrupt()
}

// recovered makes a panic end only this watch.
func (p *pumpedWatch) recovered() {
	if r := recover(); r != nil {
		p.pump.log.Error("panic in a watch", zap.Any("panic", r), zap.ByteString("stack", debug.Stack()))
	}
}
