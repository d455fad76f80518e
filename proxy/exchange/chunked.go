package exchange

import (
	"io"
	"slices"
	"strconv"
	"sync"
)

// ChunkWriter collects the frames of a stream and writes them as HTTP/1.1
// chunks: whatever is pending goes out in one write, unless it is large.
//
// An idle stream holds no buffer. One whose client does not read holds a piece: so much is
// handed to the writer at a time, and until it has gone nothing more is collected.
type ChunkWriter struct {
	To       io.Writer
	Settle   func() error // waits for what w has kept to be sent; nil if w keeps nothing
	Unframed bool         // no chunks, for HTTP/1.0
	Buf      []byte       // nil, or room for a chunk header followed by what is pending
	pooled   *[]byte
	broken   error // of a write that may have written a part
}

const (
	chunkHeader = 10 // room for the length in hexadecimal and CRLF
	// PieceSize is how much is written at a time, and collected before it is, in bytes. An
	// event that is larger is written by itself.
	PieceSize = 64 << 10
	// ChunkKeep is how large a buffer may be to be used again, in bytes: that of a piece, as
	// append makes it.
	ChunkKeep = 96 << 10
)

var chunkBuffers = sync.Pool{New: func() any { return new([]byte) }}

// Pending is the buffer to append frames to.
func (c *ChunkWriter) Pending() *[]byte {
	if c.Buf == nil {
		c.pooled = chunkBuffers.Get().(*[]byte)
		c.Buf = append((*c.pooled)[:0], make([]byte, chunkHeader)...)
	}
	return &c.Buf
}

// MakeRoom writes what is pending if a frame of size bytes behind it would be too much.
func (c *ChunkWriter) MakeRoom(size int) error {
	if len(c.Buf)+size <= PieceSize {
		return nil
	}
	return c.Flush()
}

// Flush writes what is pending as one chunk.
func (c *ChunkWriter) Flush() error {
	if len(c.Buf) <= chunkHeader {
		return nil
	}
	return c.Write(c.Chunk())
}

// FlushWith writes what is pending, body and tail as one chunk, without a copy of body.
func (c *ChunkWriter) FlushWith(body, tail []byte) error {
	size := len(c.Buf) - chunkHeader + len(body) + len(tail)
	if !c.Unframed {
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

// Chunk makes a chunk of what is pending.
func (c *ChunkWriter) Chunk() []byte {
	size := len(c.Buf) - chunkHeader
	if !c.Unframed {
		c.Buf = append(c.Buf, "\r\n"...)
	}
	return c.headed(size)
}

// headed is what is pending behind the head of a chunk of size bytes.
func (c *ChunkWriter) headed(size int) []byte {
	if c.Unframed {
		return c.Buf[chunkHeader:]
	}
	head := strconv.AppendInt(make([]byte, 0, chunkHeader), int64(size), 16)
	head = append(head, "\r\n"...)
	start := chunkHeader - len(head)
	copy(c.Buf[start:], head)
	return c.Buf[start:]
}

// Write writes what is pending, as a chunk or the beginning of one, and then nothing is.
func (c *ChunkWriter) Write(chunk []byte) error {
	if err := c.Send(chunk); err != nil {
		c.Buf, c.pooled = nil, nil // HTTP/2 may still hold it
		return err
	}
	c.release()
	return nil
}

// Send writes p piece by piece.
func (c *ChunkWriter) Send(p []byte) error {
	for {
		n := min(len(p), PieceSize)
		if _, c.broken = c.To.Write(p[:n]); c.broken != nil {
			return c.broken
		}
		if p = p[n:]; len(p) == 0 {
			return nil
		}
		if c.Settle != nil {
			if c.broken = c.Settle(); c.broken != nil {
				return c.broken
			}
		}
	}
}

// release gives the buffer back.
func (c *ChunkWriter) release() {
	if cap(c.Buf) <= ChunkKeep {
		*c.pooled = c.Buf[:0]
		chunkBuffers.Put(c.pooled)
	}
	c.Buf, c.pooled = nil, nil
}

// End writes the chunk that ends the body, unless it would stand amid another one.
func (c *ChunkWriter) End() error {
	if c.Unframed || c.broken != nil {
		return c.broken
	}
	_, err := io.WriteString(c.To, "0\r\n\r\n")
	return err
}
