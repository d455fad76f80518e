package h2

import (
	"sync"

	"github.com/watchproxy/watchproxy/proxy/h2/frame"
	"github.com/watchproxy/watchproxy/proxy/watch"
)

var buffers = sync.Pool{New: func() any { return new([]byte) }}

// bufLocked returns the buffer to append frames to.
func (c *Conn) bufLocked() []byte {
	if c.mu.buf == nil {
		c.mu.pooled = buffers.Get().(*[]byte)
		c.mu.buf = (*c.mu.pooled)[:0]
	}
	return c.mu.buf
}

// appendDataLocked appends a DATA frame of as much of p as the windows and the buffer allow.
func (c *Conn) appendDataLocked(s *stream, p []byte, most int) (n int) {
	n = int(min(int64(len(p)), int64(most), s.window, c.mu.window, int64(c.mu.frameMax)))
	if n <= 0 {
		return 0
	}
	s.window -= int64(n)
	c.mu.window -= int64(n)
	c.mu.buf = frame.AppendData(c.bufLocked(), s.id, p[:n])
	return n
}

// flush writes the buffer, unless a writer is at work, and waits for the client.
func (c *Conn) flush() { c.becomeWriter(true) }

// flushSoon writes the buffer without waiting for the client.
func (c *Conn) flushSoon() { c.becomeWriter(false) }

func (c *Conn) becomeWriter(mayWait bool) {
	c.mu.Lock()
	if c.mu.writing {
		c.unlock()
		return
	}
	c.mu.writing = true
	c.write(mayWait)
}

// write is called by the writer with the lock held. It writes the buffer once and releases the
// lock. If bytes remain because the caller must not wait, or because others have added some, settle
// becomes the writer.
func (c *Conn) write(mayWait bool) {
	own := len(c.mu.buf) <= bufferMax && c.net.Pumpable() // the socket keeps the bytes that the kernel does not take
	if mayWait {
		own = len(c.mu.ready) == 0
	}
	if own && len(c.mu.buf) > 0 && c.mu.err == nil {
		c.writeLocked(mayWait)
	}
	if c.mu.err == nil && (len(c.mu.buf) > 0 || c.net.Unsettled()) {
		c.unlock()
		c.running.Go(c.settle)
		return
	}
	c.restLocked()
}

// writeLocked writes the buffer. Meanwhile it releases the lock.
func (c *Conn) writeLocked(mayWait bool) {
	out, pooled := c.mu.buf, c.mu.pooled
	c.mu.buf, c.mu.pooled, c.mu.control = nil, nil, 0
	if mayWait && len(c.mu.ready) > 0 { // long answers may leave no room later
		scratch := watch.NewScratch()
		c.turnsLocked(scratch)
		scratch.Free()
	}
	c.unlock()
	err := c.put(out, mayWait)
	if cap(out) <= 2*bufferMax {
		*pooled = out[:0]
		buffers.Put(pooled)
	}
	c.mu.Lock()
	c.failLocked(err)
}

// restLocked ends the writer's work and releases the lock.
func (c *Conn) restLocked() {
	if c.mu.err != nil { // a full buffer would keep the pump from ending the watches
		c.mu.buf, c.mu.pooled = nil, nil
	}
	c.mu.writing = false
	c.mu.written.Broadcast()
	c.queueLocked()
	c.unlock()
}

// put writes frames.
func (c *Conn) put(out []byte, mayWait bool) error {
	if mayWait && c.net.Pumpable() {
		return c.net.WriteWaiting(out)
	}
	_, err := c.net.Write(out)
	return err
}

// written waits until another writer has written the buffer.
func (c *Conn) written() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for c.mu.writing && c.mu.err == nil {
		c.mu.written.Wait()
	}
}

// settle writes the remaining bytes at the client's speed. It is the writer until nothing is left.
func (c *Conn) settle() {
	c.mu.Lock()
	for c.mu.err == nil {
		switch {
		case c.net.Unsettled():
			c.unlock()
			err := c.net.Settle()
			c.mu.Lock()
			c.failLocked(err)
		case len(c.mu.buf) > 0:
			c.writeLocked(true)
		default:
			c.restLocked()
			return
		}
	}
	c.restLocked()
}
