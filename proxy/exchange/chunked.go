package exchange

import (
	"io"
	"slices"
	"strconv"
	"sync"
)

// ChunkWriter collects the frames of a stream and writes them as HTTP/1.1 chunks. Normally it
// writes all pending frames together. It writes large frames in pieces.
//
// An idle stream holds no buffer. If a client does not read, its stream holds one piece. The next
// piece is collected after the writer has sent this piece.
type ChunkWriter struct {
	To        io.Writer
	Unchunked bool // no chunks, as over HTTP/2 and HTTP/1.0
	// Guard is called with the length of a large event before its write, then with 0; nil for none.
	Guard  interface{ Large(size int64) }
	Buf    []byte // nil, or room for a chunk header, then pending frames
	Sent   uint64 // number of bytes written
	pooled *[]byte
	broken error // the error of a write, which may be partial
}

const (
	chunkHeader = 10 // the length in hexadecimal and CRLF
	// PieceSize is the maximum number of bytes that are collected and written at a time. A larger
	// event is written separately, in pieces of this size.
	PieceSize = 64 << 10
	// chunkKeep is the maximum size of a reused buffer, in bytes. Append may grow the buffer of a
	// piece to this size. A large event that cannot be split needs a larger buffer.
	chunkKeep = 96 << 10
)

var chunkBuffers = sync.Pool{New: func() any { return new([]byte) }}

// Pending returns the buffer to which frames are appended.
func (c *ChunkWriter) Pending() *[]byte {
	if c.Buf == nil {
		c.pooled = chunkBuffers.Get().(*[]byte)
		c.Buf = append((*c.pooled)[:0], make([]byte, chunkHeader)...)
	}
	return &c.Buf
}

// MakeRoom writes pending frames if a frame of size bytes would not fit after them.
func (c *ChunkWriter) MakeRoom(size int) error {
	if len(c.Buf)+size <= PieceSize {
		return nil
	}
	return c.Flush()
}

// Flush writes pending frames as one chunk.
func (c *ChunkWriter) Flush() error {
	if len(c.Buf) <= chunkHeader {
		return nil
	}
	return c.Write(c.Chunk())
}

// Add adds a frame to the pending ones. A long frame is written, too, without a copy.
func (c *ChunkWriter) Add(frame []byte) error {
	if err := c.MakeRoom(len(frame)); err != nil {
		return err
	}
	buf := c.Pending()
	if len(frame) > PieceSize {
		return c.FlushWith(frame, nil) // which may wait for the client
	}
	*buf = append(*buf, frame...)
	return nil
}

// FlushWith writes pending frames, body and tail as one chunk. It does not copy body.
func (c *ChunkWriter) FlushWith(body, tail []byte) error {
	if c.Guard != nil {
		c.Guard.Large(int64(len(body)))
		defer c.Guard.Large(0)
	}
	size := len(c.Buf) - chunkHeader + len(body) + len(tail)
	if !c.Unchunked {
		tail = append(slices.Clip(tail), "\r\n"...)
	}
	if err := c.Write(c.headed(size)); err != nil {
		return err
	}
	if err := c.Send(body); err != nil {
		return err
	}
	return c.Send(tail)
}

// Chunk returns pending frames as a chunk.
func (c *ChunkWriter) Chunk() []byte {
	size := len(c.Buf) - chunkHeader
	if !c.Unchunked {
		c.Buf = append(c.Buf, "\r\n"...)
	}
	return c.headed(size)
}

func (c *ChunkWriter) headed(size int) []byte {
	if c.Unchunked {
		return c.Buf[chunkHeader:]
	}
	head := strconv.AppendInt(make([]byte, 0, chunkHeader), int64(size), 16)
	head = append(head, "\r\n"...)
	start := chunkHeader - len(head)
	copy(c.Buf[start:], head)
	return c.Buf[start:]
}

// Write writes pending frames, as a chunk or the beginning of a chunk, and releases the buffer.
func (c *ChunkWriter) Write(chunk []byte) error {
	defer c.release()
	return c.Send(chunk)
}

// Send writes p piece by piece. After a failed write, it writes nothing.
func (c *ChunkWriter) Send(p []byte) error {
	if c.broken != nil {
		return c.broken
	}
	for len(p) > 0 {
		n := min(len(p), PieceSize)
		c.Sent += uint64(n) //nolint:gosec // not negative
		if _, c.broken = c.To.Write(p[:n]); c.broken != nil {
			return c.broken
		}
		p = p[n:]
	}
	return nil
}

func (c *ChunkWriter) release() {
	if cap(c.Buf) <= chunkKeep {
		*c.pooled = c.Buf[:0]
		chunkBuffers.Put(c.pooled)
	}
	c.Buf, c.pooled = nil, nil
}

// End writes the last chunk. If a write has failed, it returns the error of that write instead.
func (c *ChunkWriter) End() error {
	if c.Unchunked || c.broken != nil {
		return c.broken
	}
	_, err := io.WriteString(c.To, "0\r\n\r\n")
	return err
}
