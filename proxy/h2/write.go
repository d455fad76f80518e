package h2

import (
	"encoding/binary"

	"golang.org/x/net/http2"
)

// bufLocked returns the buffer to append frames to.
func (c *Conn) bufLocked() []byte {
	if c.mu.buf == nil {
		c.mu.pooled = buffers.Get().(*[]byte)
		c.mu.buf = (*c.mu.pooled)[:0]
	}
	return c.mu.buf
}

const frameHead = 9

// appendHead appends the head of a frame.
func appendHead(b []byte, length int, kind http2.FrameType, flags http2.Flags, id uint32) []byte {
	b = append(b, byte(length>>16), byte(length>>8), byte(length), byte(kind), byte(flags))
	return binary.BigEndian.AppendUint32(b, id)
}

func (c *Conn) appendSettingsLocked() {
	b := appendHead(c.bufLocked(), 4*6, http2.FrameSettings, 0, 0)
	for _, s := range []http2.Setting{
		{ID: http2.SettingMaxFrameSize, Val: frameMax},
		{ID: http2.SettingMaxConcurrentStreams, Val: streamsMax},
		{ID: http2.SettingMaxHeaderListSize, Val: c.framer.MaxHeaderListSize},
		{ID: http2.SettingInitialWindowSize, Val: windowStream},
	} {
		b = binary.BigEndian.AppendUint16(b, uint16(s.ID))
		b = binary.BigEndian.AppendUint32(b, s.Val)
	}
	c.mu.buf = appendWindowUpdate(b, 0, windowConn-windowInitial)
	c.received.Store(windowConn)
}

func appendWindowUpdate(b []byte, id uint32, n int64) []byte {
	b = appendHead(b, 4, http2.FrameWindowUpdate, 0, id)
	return binary.BigEndian.AppendUint32(b, uint32(n)) //nolint:gosec // a window fits
}

func (c *Conn) appendGoawayLocked(last uint32, code http2.ErrCode) {
	b := appendHead(c.bufLocked(), 8, http2.FrameGoAway, 0, 0)
	b = binary.BigEndian.AppendUint32(b, last)
	c.mu.buf = binary.BigEndian.AppendUint32(b, uint32(code))
}

func (c *Conn) appendResetLocked(id uint32, code http2.ErrCode) {
	b := appendHead(c.bufLocked(), 4, http2.FrameRSTStream, 0, id)
	c.mu.buf = binary.BigEndian.AppendUint32(b, uint32(code))
}

// appendDataLocked appends a DATA frame of as much of p as the windows and the buffer allow.
func (c *Conn) appendDataLocked(s *stream, p []byte, most int) (n int) {
	n = int(min(int64(len(p)), int64(most), s.window, c.mu.window, int64(c.mu.frameMax)))
	if n <= 0 {
		return 0
	}
	s.window -= int64(n)
	c.mu.window -= int64(n)
	c.mu.buf = append(appendHead(c.bufLocked(), n, http2.FrameData, 0, s.id), p[:n]...)
	return n
}

// flush writes the buffer, unless a writer is at work, and waits for the client.
func (c *Conn) flush() {
	c.mu.Lock()
	if c.mu.writing {
		c.mu.Unlock()
		return
	}
	c.mu.writing = true
	c.write(true)
}

// write is called by the writer with the lock held, and gives both up. If it must not wait, a goroutine
// of its own does.
func (c *Conn) write(mayWait bool) {
	if n := len(c.mu.buf); !mayWait && (n > bufferMax || n > 0 && !c.net.Pumpable()) { // more than the socket keeps
		c.mu.Unlock()
		c.running.Go(c.settle)
		return
	}
	for len(c.mu.buf) > 0 && c.mu.err == nil {
		out, pooled := c.mu.buf, c.mu.pooled
		c.mu.buf, c.mu.pooled, c.mu.control = nil, nil, 0
		c.mu.Unlock()
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
		c.mu.changed.Broadcast()
	}
	if c.mu.err != nil { // a full buffer would keep the pump from ending the watches
		c.mu.buf, c.mu.pooled = nil, nil
	}
	c.mu.writing = false
	c.mu.changed.Broadcast()
	requeue := len(c.mu.ready) > 0 && !c.mu.queued
	c.mu.queued = c.mu.queued || requeue
	c.mu.Unlock()
	if requeue {
		c.server.pump.add(c)
	}
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
		c.mu.changed.Wait()
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
	c.mu.changed.Broadcast()
	c.write(true)
}

func (c *Conn) failLocked(err error) {
	if err != nil && c.mu.err == nil {
		c.mu.err = err
		c.net.Interrupt()
	}
}
