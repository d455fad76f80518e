package h2

import (
	"container/list"
	"errors"
	"math"
	"sync"

	"golang.org/x/net/http2"

	"github.com/watchproxy/watchproxy/proxy/conn"
	"github.com/watchproxy/watchproxy/proxy/watch"
)

// writer writes the frames of a connection, which wait in a buffer. Its lock also guards the
// streams, because a stream changes when its frames are appended.
type writer struct {
	net     *conn.Conn
	pump    *pump
	running *sync.WaitGroup // the connection's

	mu struct {
		sync.Mutex
		written *sync.Cond // signaled when a goroutine stops writing or err is set
		err     error      // why writing has ended

		buf     []byte // frames to be written; nil if there are none
		pooled  *[]byte
		control int  // bytes of control frames in buf
		writing bool // a goroutine writes
		waiting bool // it waits for the client, or has waited
		peer    peer
		turns   turns
	}
}

// turns has the streams that wait for their turn to append frames.
type turns struct {
	forRoom, forWindow list.List // of *sender: they wait for room or the connection's window
	ready              []*pumped // watches with work for the pump
	queued             bool      // the connection is in the pump's queue
}

func newWriter(nc *conn.Conn, p *pump, running *sync.WaitGroup) *writer {
	w := &writer{
		net:     nc,
		pump:    p,
		running: running,
	}
	w.mu.written = sync.NewCond(&w.mu)
	w.mu.peer = newPeer()
	return w
}

// unlock releases the lock. Before, it wakes the first stream of each queue for which there is
// room. A woken stream also calls unlock and so wakes the next one.
func (w *writer) unlock() {
	w.passLocked()
	w.mu.Unlock()
}

func (w *writer) passLocked() {
	if len(w.mu.buf) < bufferRoom {
		wakeFirst(&w.mu.turns.forRoom, math.MaxInt64)
		wakeFirst(&w.mu.turns.forWindow, w.mu.peer.window)
	}
}

func wakeFirst(line *list.List, window int64) {
	if e := line.Front(); e != nil {
		if s := e.Value.(*sender); window >= s.least {
			s.leaveLocked()
			s.wakeLocked()
		}
	}
}

var errClosed = errors.New("the connection is closed")

// failLocked ends writing. Reading then fails, too, which ends the streams.
func (w *writer) failLocked(err error) {
	if err != nil && w.mu.err == nil {
		w.mu.err = err
		w.net.Interrupt()
		w.mu.written.Broadcast()
	}
}

var buffers = sync.Pool{New: func() any { return new([]byte) }}

func (w *writer) bufLocked() []byte {
	if w.mu.buf == nil {
		w.mu.pooled = buffers.Get().(*[]byte)
		w.mu.buf = (*w.mu.pooled)[:0]
	}
	return w.mu.buf
}

// answerControlLocked sets the buffer, to which an answer to a client's frame was appended.
func (w *writer) answerControlLocked(buf []byte) error {
	w.mu.control += len(buf) - len(w.mu.buf)
	w.mu.buf = buf
	if w.floodsLocked() {
		return http2.ConnectionError(http2.ErrCodeEnhanceYourCalm)
	}
	return nil
}

// floodLocked disconnects a client that does not read control frames.
func (w *writer) floodLocked() {
	if w.floodsLocked() {
		w.failLocked(http2.ConnectionError(http2.ErrCodeEnhanceYourCalm))
	}
}

func (w *writer) floodsLocked() bool {
	return w.mu.control > controlMax || w.mu.control > controlUnknown && !w.net.Account.Known()
}

// queueLocked queues the connection if it has work for the pump. A goroutine that writes queues it
// after the write.
func (w *writer) queueLocked() {
	if t := &w.mu.turns; len(t.ready) > 0 && !t.queued && !w.mu.writing {
		t.queued = true
		w.pump.add(w)
	}
}

// work writes the events of all ready watches together, without waiting for the client.
func (w *writer) work(scratch *watch.Scratch) {
	w.mu.Lock()
	w.mu.turns.queued = false
	if w.mu.writing { // the goroutine that writes queues the connection again
		w.unlock()
		return
	}
	w.mu.writing = true
	w.stepsLocked(scratch)
	w.writeAndUnlock(false)
}

// stepsLocked lets ready watches append events until the buffer is full. It must be called only by
// the goroutine that writes. It releases the lock during each step.
func (w *writer) stepsLocked(scratch *watch.Scratch) {
	t := &w.mu.turns
	for len(t.ready) > 0 && len(w.mu.buf) < bufferMax {
		p := t.ready[0]
		if t.ready = t.ready[1:]; len(t.ready) == 0 {
			t.ready = nil
		}
		p.appendEventsLocked(scratch)
	}
}

// flush writes the buffer and waits for the client. It does nothing if another goroutine writes.
func (w *writer) flush() {
	w.mu.Lock()
	w.flushAndUnlock(true)
}

// flushSoon writes the buffer without waiting for the client.
func (w *writer) flushSoon() {
	w.mu.Lock()
	w.flushAndUnlock(false)
}

func (w *writer) flushAndUnlock(mayWait bool) {
	if w.mu.writing {
		w.unlock()
		return
	}
	w.mu.writing = true
	w.writeAndUnlock(mayWait)
}

// writeAndUnlock must be called with the lock held, by the goroutine that writes. It writes the
// buffer once and releases the lock. Bytes may remain because the caller must not wait, or because
// others have added some. Then flushAll goes on.
func (w *writer) writeAndUnlock(mayWait bool) {
	// The socket keeps the bytes that the kernel does not accept.
	own := len(w.mu.buf) <= bufferMax
	if mayWait {
		own = len(w.mu.turns.ready) == 0
	}
	if own && len(w.mu.buf) > 0 && w.mu.err == nil {
		w.writeLocked(mayWait)
	}
	if w.mu.err == nil && (len(w.mu.buf) > 0 || w.net.Unflushed()) {
		w.unlock()
		w.running.Go(w.flushAll)
		return
	}
	w.restAndUnlock()
}

// writeLocked writes the buffer. It releases the lock during the write.
func (w *writer) writeLocked(mayWait bool) {
	out, pooled := w.mu.buf, w.mu.pooled
	w.mu.buf, w.mu.pooled, w.mu.control = nil, nil, 0
	if mayWait && len(w.mu.turns.ready) > 0 { // long responses may leave no room later
		scratch := watch.NewScratch()
		w.stepsLocked(scratch)
		scratch.Free()
	}
	w.unlock()
	var err error
	if mayWait {
		_, err = w.net.Write(out)
	} else {
		err = w.net.WriteSoon(out)
	}
	if cap(out) <= 2*bufferMax {
		*pooled = out[:0]
		buffers.Put(pooled)
	}
	w.mu.Lock()
	w.failLocked(err)
}

// restAndUnlock ends the work of the goroutine that writes, and releases the lock.
func (w *writer) restAndUnlock() {
	if w.mu.err != nil { // a full buffer would prevent the pump from ending the watches
		w.mu.buf, w.mu.pooled = nil, nil
	}
	w.mu.writing, w.mu.waiting = false, false
	w.mu.written.Broadcast()
	w.queueLocked()
	w.unlock()
}

func (w *writer) awaitWritten() {
	w.mu.Lock()
	defer w.mu.Unlock()
	for w.mu.writing && w.mu.err == nil {
		w.mu.written.Wait()
	}
}

// flushAll writes until no bytes are left, at the client's speed.
func (w *writer) flushAll() {
	w.mu.Lock()
	for w.mu.err == nil && (len(w.mu.buf) > 0 || w.net.Unflushed()) {
		if !w.net.Unflushed() {
			w.writeLocked(true)
			continue
		}
		w.mu.waiting = true
		w.unlock()
		err := w.net.Flush()
		w.mu.Lock()
		w.failLocked(err)
	}
	w.restAndUnlock()
}
