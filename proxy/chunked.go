package proxy

import (
	"io"
	"strconv"
	"sync"
)

// chunkWriter collects the frames of a stream and writes them as HTTP/1.1
// chunks: whatever is pending goes out in one write.
//
// An idle stream holds no buffer.
type chunkWriter struct {
	w        io.Writer
	unframed bool   // no chunks, for HTTP/1.0
	buf      []byte // nil, or room for a chunk header followed by what is pending
	pooled   *[]byte
}

const (
	chunkHeader = 10       // room for the length in hexadecimal and CRLF
	chunkFull   = 64 << 10 // bytes after which a chunk is not let grow
	chunkKeep   = 256 << 10
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

func (c *chunkWriter) flushIfFull() error {
	if len(c.buf) < chunkFull {
		return nil
	}
	return c.flush()
}

// flush writes what is pending as one chunk, in one write.
func (c *chunkWriter) flush() error {
	if len(c.buf) <= chunkHeader {
		return nil
	}
	return c.write(c.chunk())
}

// chunk makes a chunk of what is pending.
func (c *chunkWriter) chunk() []byte {
	if c.unframed {
		return c.buf[chunkHeader:]
	}
	size := strconv.AppendInt(make([]byte, 0, chunkHeader), int64(len(c.buf)-chunkHeader), 16)
	size = append(size, "\r\n"...)
	start := chunkHeader - len(size)
	copy(c.buf[start:], size)
	c.buf = append(c.buf, "\r\n"...)
	return c.buf[start:]
}

// write writes a chunk of what is pending, and then nothing is.
func (c *chunkWriter) write(chunk []byte) error {
	if _, err := c.w.Write(chunk); err != nil {
		c.buf, c.pooled = nil, nil // HTTP/2 may still hold it
		return err
	}
	c.release()
	return nil
}

// release gives the buffer back.
func (c *chunkWriter) release() {
	if cap(c.buf) <= chunkKeep {
		*c.pooled = c.buf[:0]
		chunkBuffers.Put(c.pooled)
	}
	c.buf, c.pooled = nil, nil
}

// end writes the chunk that ends the body.
func (c *chunkWriter) end() error {
	if c.unframed {
		return nil
	}
	_, err := io.WriteString(c.w, "0\r\n\r\n")
	return err
}
