package h2

import (
	"sync"

	"github.com/watchproxy/watchproxy/proxy/watch"
)

var buffers = sync.Pool{New: func() any { return new([]byte) }}

// bufLocked returns the buffer to which frames are appended.
func (c *Conn) bufLocked() []byte {
	if c.mu.buf == nil {
		c.mu.pooled = buffers.Get().(*[]byte)
		c.mu.buf = (*c.mu.pooled)[:0]
	}
	return c.mu.buf
}

// appendDataLocked appends a DATA frame with as many bytes of p as the windows and the buffer
// allow.
func (c *Conn) appendDataLocked(s *stream, p []byte, most int) (n int) {
	n = int(min(int64(len(p)), int64(most), s.window, c.mu.window, int64(c.mu.frameMax)))
	if n <= 0 {
		return 0
	}
	s.window -= int64(n)
	c.mu.window -= int64(n)
	c.mu.buf = appendData(c.bufLocked(), s.id, p[:n])
	return n
}

// flush writes the buffer and waits for the client. It does nothing if there is a writer.
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

// write must be called by the writer with the lock held. It writes the buffer once and releases the
// lock. Bytes may remain because the caller must not wait, or because others have added some. Then
// flushAll becomes the writer.
func (c *Conn) write(mayWait bool) {
	// The socket keeps the bytes that the kernel does not accept.
	own := len(c.mu.buf) <= bufferMax
	if mayWait {
		own = len(c.mu.ready) == 0
	}
	if own && len(c.mu.buf) > 0 && c.mu.err == nil {
		c.writeLocked(mayWait)
	}
	if c.mu.err == nil && (len(c.mu.buf) > 0 || c.net.Unflushed()) {
		c.unlock()
		c.running.Go(c.flushAll)
		return
	}
	c.restLocked()
}

// writeLocked writes the buffer. It releases the lock during the write.
func (c *Conn) writeLocked(mayWait bool) {
	out, pooled := c.mu.buf, c.mu.pooled
	c.mu.buf, c.mu.pooled, c.mu.control = nil, nil, 0
	if mayWait && len(c.mu.ready) > 0 { // long responses may leave no room later
		scratch := watch.NewScratch()
		c.stepsLocked(scratch)
		scratch.Free()
	}
	c.unlock()
	var err error
	if mayWait {
		_, err = c.net.Write(out)
	} else {
		err = c.net.WriteSoon(out)
	}
	if cap(out) <= 2*bufferMax {
		*pooled = out[:0]
		buffers.Put(pooled)
	}
	c.mu.Lock()
	c.failLocked(err)
}

// restLocked ends the writer's work and releases the lock.
func (c *Conn) restLocked() {
	if c.mu.err != nil { // a full buffer would prevent the pump from ending the watches
		c.mu.buf, c.mu.pooled = nil, nil
	}
	c.mu.writing, c.mu.waiting = false, false
	c.mu.written.Broadcast()
	c.queueLocked()
	c.unlock()
}

// written waits until another writer has written the buffer.
func (c *Conn) written() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for c.mu.writing && c.mu.err == nil {
		c.mu.written.Wait()
	}
}

// flushAll is the writer until no bytes are left. It writes at the client's speed.
func (c *Conn) flushAll() {
	c.mu.Lock()
	for c.mu.err == nil && (len(c.mu.buf) > 0 || c.net.Unflushed()) {
		if !c.net.Unflushed() {
			c.writeLocked(true)
			continue
		}
		c.mu.waiting = true
		c.unlock()
		err := c.net.Flush()
		c.mu.Lock()
		c.failLocked(err)
	}
	c.restLocked()
}
