package h2

import (
	"sync"

	"github.com/watchproxy/watchproxy/proxy/h2/frame"
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
func (c *Conn) flush() {
	c.mu.Lock()
	if c.mu.writing {
		c.unlock()
		return
	}
	c.mu.writing = true
	c.write(true)
}

// flushSoon writes the buffer without waiting for the client.
func (c *Conn) flushSoon() {
	c.mu.Lock()
	if c.mu.writing {
		c.unlock()
		return
	}
	c.mu.writing = true
	c.write(false)
}

// write is called by the writer with the lock held, and gives both up. If it must not wait, a goroutine
// of its own does.
func (c *Conn) write(mayWait bool) {
	if n := len(c.mu.buf); !mayWait && (n > bufferMax || n > 0 && !c.net.Pumpable()) { // more than the socket keeps
		c.unlock()
		c.running.Go(c.settle)
		return
	}
	for len(c.mu.buf) > 0 && c.mu.err == nil {
		out, pooled := c.mu.buf, c.mu.pooled
		c.mu.buf, c.mu.pooled, c.mu.control = nil, nil, 0
		c.unlock()
		err := c.put(out, mayWait)
		if cap(out) <= 2*bufferMax {
			*pooled = out[:0]
			buffers.Put(pooled)
		}
		if err == nil && c.net.Unsettled() {
			if !mayWait {
				c.running.Go(c.settle)
				return
			}
			err = c.net.Settle()
		}
		c.mu.Lock()
		c.failLocked(err)
	}
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
		if c.net.Unsettled() {
			if err := c.net.Settle(); err != nil {
				return err
			}
		}
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

// settle waits for the client to take what was written, and writes the rest.
func (c *Conn) settle() {
	var err error
	if c.net.Unsettled() {
		err = c.net.Settle()
	}
	c.mu.Lock()
	c.failLocked(err)
	c.write(true)
}
