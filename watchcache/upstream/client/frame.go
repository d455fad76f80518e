package client

import (
	"bufio"
	"encoding/binary"
	"fmt"
	"io"

	"github.com/watchproxy/watchproxy/watchcache/object"
)

// frameReader reads frames: a four-byte big-endian length and that many bytes.
type frameReader struct {
	r   *bufio.Reader
	buf []byte
}

const (
	frameHead = 4
	// bufferKeep is the maximum size of a buffer that is reused for the next frame.
	bufferKeep = 1 << 20
)

func newFrameReader(body io.Reader, size int) *frameReader {
	return &frameReader{r: bufio.NewReaderSize(body, size)}
}

// Next returns a frame, which is valid until the next call. At a clean end, it returns io.EOF.
func (f *frameReader) Next() ([]byte, error) {
	var head [frameHead]byte
	if _, err := io.ReadFull(f.r, head[:]); err != nil {
		return nil, err
	}
	n := binary.BigEndian.Uint32(head[:])
	if n > maxEvent {
		return nil, fmt.Errorf("%w: watch event of %d bytes", object.ErrMalformed, n)
	}
	var err error
	f.buf, err = readSized(f.r, kept(f.buf), int(n))
	return f.buf, err
}

// Buffered reports whether Next would return without waiting.
func (f *frameReader) Buffered() bool {
	head, err := f.r.Peek(min(frameHead, f.r.Buffered()))
	if err != nil || len(head) < frameHead {
		return false
	}
	return f.r.Buffered()-frameHead >= int(min(binary.BigEndian.Uint32(head), maxEvent))
}
