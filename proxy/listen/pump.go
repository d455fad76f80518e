package listen

import (
	"context"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"github.com/watchproxy/watchproxy/proxy/conn"
	"github.com/watchproxy/watchproxy/proxy/exchange"
	"github.com/watchproxy/watchproxy/proxy/metrics"
	"github.com/watchproxy/watchproxy/proxy/watch"
)

// pump writes events to watches over HTTP/1. No goroutine of such a watch waits for events, because
// waking it took a fifth of a delivery's time. Instead the cursor puts the watch into a queue. One
// goroutine for each processor takes watches from the queue and works on them.
//
// The pump never waits for a client. If the kernel does not accept all bytes at once, the watch
// gets its own goroutine until it has caught up. Such a goroutine also writes events larger than a
// piece (64 KiB). A watch with an expensive filter always has its own goroutine.
//
// The pump polls a watch again only after the kernel has accepted all earlier bytes. So the proxy
// buffers at most one piece for each connection.
type pump struct {
	watch.Pump[*pumpedWatch]
	metrics *metrics.Metrics
	log     *zap.Logger
}

// pumpedWatch is a watch that a pump writes. At most one goroutine at a time works on it.
type pumpedWatch struct {
	*watch.Watch
	pump *pump
	ctx  context.Context // ends when the client leaves
	conn *conn.Conn
	out  *exchange.ChunkWriter
	// pending is 0 while the watch has no work. Otherwise the watch is in the queue or a goroutine
	// works on it. Beyond 1, there is work since the goroutine has begun.
	pending atomic.Int32
	over    chan struct{} // closed after the last work on the watch
}

// ready puts the watch into the queue, unless it is there or a goroutine works on it. It does not
// block.
func (p *pumpedWatch) ready() {
	if p.pending.Add(1) == 1 {
		p.pump.Add(p)
	}
}

// rest ends a goroutine's work on a watch. If there is new work, it queues the watch again.
func (p *pumpedWatch) rest() {
	if !p.pending.CompareAndSwap(1, 0) {
		p.pump.Add(p)
	}
}

// serve lets the pump write a watch until the watch ends. Meanwhile the caller's goroutine waits
// for the client to leave.
func (p *pump) serve(ctx context.Context, leave context.CancelFunc, c *conn.Conn, w *watch.Watch, out *exchange.ChunkWriter) {
	defer w.Close()
	if !w.Open(ctx, out) {
		return
	}
	pumped := &pumpedWatch{Watch: w, pump: p, ctx: ctx, conn: c, out: out, over: make(chan struct{})}
	c.ReadUntil(time.Time{})
	c.StartNonblocking()
	w.Cursor.Notify(pumped.ready)
	pumped.ready() // for events that arrived before Notify
	c.ReadInput(func() {
		if c.Unsettled() { // TLS has written a record in response to input
			pumped.ready()
		}
	})
	leave()
	<-pumped.over
	c.StopNonblocking()
}

// Work implements watch.Worker. It runs one turn of the watch. If the client does not accept all
// bytes at once, catchUp writes the rest.
func (p *pumpedWatch) Work(s *watch.Scratch) {
	p.pending.Store(1)
	if p.conn.Unsettled() { // TLS has written a record in response to input
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

// step runs one turn of the watch.
func (p *pumpedWatch) step(s *watch.Scratch) (on, behind bool) {
	defer p.recovered()
	return p.Turn(p.ctx, p.out, s)
}

// catchUp works on a watch at the client's speed until no work is left.
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
		if p.conn.Unsettled() {
			p.ClientWaited()
		}
		if err := p.conn.Settle(); err != nil {
			p.Broken(err)
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

// recovered limits the effect of a panic to this watch.
func (p *pumpedWatch) recovered() {
	if r := recover(); r != nil {
		p.pump.metrics.Panicked(p.pump.log, metrics.InWatch, r)
	}
}
