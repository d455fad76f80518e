package h2

import (
	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

// beginLocked opens a stream.
func (c *client) beginLocked(end bool, piece, pad int, fields ...hpack.HeaderField) *call {
	id := (c.mu.last + 1) | 1 // the next odd number
	s := &call{id: id, sendWindow: c.mu.sendInitial, uploaded: end}
	c.mu.last, c.mu.calls[id] = id, s
	c.headersLocked(id, end, piece, pad, fields...)
	return s
}

// headersLocked writes a header in frames of piece bytes.
func (c *client) headersLocked(id uint32, end bool, piece, pad int, fields ...hpack.HeaderField) {
	c.mu.block.Reset()
	for _, f := range fields {
		_ = c.mu.encoder.WriteField(f)
	}
	first := c.mu.block.Next(piece)
	_ = c.mu.out.WriteHeaders(http2.HeadersFrameParam{
		StreamID: id, BlockFragment: first, EndStream: end, EndHeaders: c.mu.block.Len() == 0, PadLength: uint8(pad),
	})
	for c.mu.block.Len() > 0 {
		next := c.mu.block.Next(piece)
		_ = c.mu.out.WriteContinuation(id, c.mu.block.Len() == 0, next)
	}
}

// dataLocked writes as many bytes of p as the windows allow, in a frame with padding. It returns
// their number.
func (c *client) dataLocked(s *call, p []byte, end bool, pad int) int {
	left := min(c.mu.sendWindow, s.sendWindow, c.mu.sendMax)
	if pad > 0 {
		left -= int64(pad) + 1
	}
	if left < min(1, int64(len(p))) {
		return 0
	}
	n := min(len(p), int(left))
	size := int64(n)
	s.uploaded = end && n == len(p)
	if pad > 0 {
		size += int64(pad) + 1
		_ = c.mu.out.WriteDataPadded(s.id, s.uploaded, p[:n], make([]byte, pad))
	} else {
		_ = c.mu.out.WriteData(s.id, s.uploaded, p[:n])
	}
	c.mu.sendWindow -= size
	s.sendWindow -= size
	return n
}

// widenLocked gives the server windows; s is nil for the connection's window.
func (c *client) widenLocked(s *call, n int64) {
	if s == nil {
		c.mu.window += n
		_ = c.mu.out.WriteWindowUpdate(0, uint32(n))
	} else {
		s.given += n
		_ = c.mu.out.WriteWindowUpdate(s.id, uint32(n))
	}
}

// cancelLocked resets a stream.
func (c *client) cancelLocked(s *call) {
	s.canceled = true
	_ = c.mu.out.WriteRSTStream(s.id, http2.ErrCodeCancel)
	c.pingLocked(func() { s.confirmed = true })
}

func (c *client) pingLocked(answered func()) {
	c.mu.pings = append(c.mu.pings, answered)
	_ = c.mu.out.WritePing(false, [8]byte{})
}

// await waits until done returns true or the connection ends. It returns the error of the
// connection.
func (c *client) await(done func() bool) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	for !done() {
		if c.mu.err != nil {
			return c.mu.err
		}
		c.mu.changed.Wait()
	}
	return c.mu.broken
}
