package proxy

import (
	"io"
	"slices"
	"strconv"
	"sync"
)

// chunkWriter collects the frames of a stream and writes them as HTTP/1.1
// chunks: whatever is pending goes out in one write, unless it is large.
//
// An idle stream holds no buffer. One whose client does not read holds a piece: so much is
// handed to the writer at a time, and until it has gone nothing more is collected.
type chunkWriter struct {
	w        io.Writer
	settle   func() error // waits for what w has kept to be sent; nil if w keeps nothing
	unframed bool         // no chunks, for HTTP/1.0
	buf      []byte       // nil, or room for a chunk header followed by what is pending
	pooled   *[]byte
	broken   error // of a write that may have written a part
}

const (
	chunkHeader = 10 // room for the length in hexadecimal and CRLF
	// pieceSize is how much is written at a time, and collected before it is, in bytes. An
	// event that is larger is written by itself.
	pieceSize = 64 << 10
	// chunkKeep is how large a buffer may be to be used again, in bytes: that of a piece, as
	// append makes it.
	chunkKeep = 96 << 10
)

var chunkBuffers = sync.Pool{New: func() any { return new([]byte) }}

// pending is the buffer to append frames to.
func (c *chunkWriter) pending() *[]byte {
	if c.buf == nil {
		c.pooled = chunkBuffers.Get().(*[]byte)
		c.buf = append((*c.pooled)[:0], make([]byte, chunkHeader)...)
	}
	return &c.buf
}

// makeRoom writes what is pending if a frame of size bytes behind it would be too much.
func (c *chunkWriter) makeRoom(size int) error {
	if len(c.buf)+size <= pieceSize {
		return nil
	}
	return c.flush()
}

// flush writes what is pending as one chunk.
func (c *chunkWriter) flush() error {
	if len(c.buf) <= chunkHeader {
		return nil
	}
	return c.write(c.chunk())
}

// flushWith writes what is pending, body and tail as one chunk, without a copy of body.
func (c *chunkWriter) flushWith(body, tail []byte) error {
	size := len(c.buf) - chunkHeader + len(body) + len(tail)
	if !c.unframed {
		tail = append(slices.Clip(tail), "\r\n"...)
	}
	if err := c.write(c.headed(size)); err != nil {
		return err
	}
	if err := c.send(body); err != nil {
		return err
	}
	return c.send(tail)
}

// chunk makes a chunk of what is pending.
func (c *chunkWriter) chunk() []byte {
	size := len(c.buf) - chunkHeader
	if !c.unframed {
		c.buf = append(c.buf, "\r\n"...)
	}
	return c.headed(size)
}

// headed is what is pending behind the head of a chunk of size bytes.
func (c *chunkWriter) headed(size int) []byte {
	if c.unframed {
		return c.buf[chunkHeader:]
	}
	head := strconv.AppendInt(make([]byte, 0, chunkHeader), int64(size), 16)
	head = append(head, "\r\n"...)
	start := chunkHeader - len(head)
	copy(c.buf[start:], head)
	return c.buf[start:]
}

// write writes what is pending, as a chunk or the beginning of one, and then nothing is.
func (c *chunkWriter) write(chunk []byte) error {
	if err := c.send(chunk); err != nil {
		c.buf, c.pooled = nil, nil // HTTP/2 may still hold it
		return err
	}
	c.release()
	return nil
}

// send writes p piece by piece.
func (c *chunkWriter) send(p []byte) error {
	for {
		n := min(len(p), pieceSize)
		if _, c.broken = c.w.Write(p[:n]); c.broken != nil {
			return c.broken
		}
		if p = p[n:]; len(p) == 0 {
			return nil
		}
		if c.settle != nil {
			if c.broken = c.settle(); c.broken != nil {
				return c.broken
			}
		}
	}
}

// release gives the buffer back.
func (c *chunkWriter) release() {
	if cap(c.buf) <= chunkKeep {
		*c.pooled = c.buf[:0]
		chunkBuffers.Put(c.pooled)
	}
	c.buf, c.pooled = nil, nil
}

// end writes the chunk that ends the body, unless it would stand amid another one.
func (c *chunkWriter) end() error {
	if c.unframed || c.broken != nil {
		return c.broken
	}
	_, err := io.WriteString(c.w, "0\r\n\r\n")
	return err
}
