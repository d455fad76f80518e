package exchange

import (
	"errors"
	"io"
	"sync/atomic"
	"time"
)

// Body is a request's body. If it is not read to its end, its HTTP/1.1 connection must close,
// because fasthttp would take the rest for the next request.
type Body struct {
	From   io.Reader
	Cut    *atomic.Bool // the client has ended the connection; nil if From reports that itself
	Length int64        // in bytes, -1 if unknown
	read   int64
	Ended  atomic.Bool
	broken atomic.Pointer[error] // set if the client's body is malformed or too long
	Most   int64                 // its maximum length, in bytes; 0 means no limit
	Extend func()                // called before each read; nil for nothing
	began  time.Time             // the time of the first read
	// Suspend removes the deadline of reads. It is nil over HTTP/1, because fasthttp has read
	// ahead.
	Suspend func()
	ahead   []byte // bytes that ReadAhead has read
	after   error  // the last error of ReadAhead
}

// BodyAhead is the number of bytes of a body that are read before the request is forwarded.
const BodyAhead = 64 << 10

// ReadAhead reads the beginning of a body over HTTP/2 while its request waits. All bodies of a
// connection share one window, so an unread body would block all other bodies.
func (b *Body) ReadAhead() {
	if b == nil || b.Suspend == nil {
		return
	}
	var piece [4 << 10]byte
	for len(b.ahead) < BodyAhead && b.after == nil {
		var n int
		n, b.after = b.readMore(piece[:])
		b.ahead = append(b.ahead, piece[:n]...)
	}
	b.Suspend()
	b.began = time.Time{} // the wait does not count as the client's time
}

// leastRate is the minimum rate at which a client has to send a bounded body, in bytes a second. An
// unbounded body, such as a stream to a pod, may be slower.
const leastRate = 1 << 10

// Deadline returns the time by which more of a body has to arrive. The client may pause for as long
// as pause, but has to send a bounded body at leastRate or faster.
func (b *Body) Deadline(pause time.Duration) time.Time {
	now := time.Now()
	if b.began.IsZero() {
		b.began = now
	}
	until := now.Add(pause)
	if b.Most > 0 {
		whole := b.began.Add(pause + time.Duration(b.read/leastRate)*time.Second)
		if whole.Before(until) {
			return whole
		}
	}
	return until
}

// ErrBodyTooLarge says that a body exceeds its maximum length.
var ErrBodyTooLarge = errors.New("request body is too large")

// Failure tells what is wrong with the part of a body that was read.
func (b *Body) Failure() error {
	if b == nil || b.broken.Load() == nil {
		return nil
	}
	return *b.broken.Load()
}

// Read implements io.Reader.
func (b *Body) Read(p []byte) (int, error) {
	if len(b.ahead) > 0 {
		n := copy(p, b.ahead)
		b.ahead = b.ahead[n:]
		return n, nil
	}
	if b.after != nil {
		return 0, b.after
	}
	return b.readMore(p)
}

func (b *Body) readMore(p []byte) (int, error) {
	if b.Extend != nil {
		b.Extend()
	}
	n, err := b.From.Read(p)
	b.read += int64(n)
	if b.Most > 0 && b.read > b.Most {
		n, err = 0, ErrBodyTooLarge
		b.broken.Store(&err)
		return n, err
	}
	if b.Length < 0 && errors.Is(err, io.EOF) && b.Cut != nil && b.Cut.Load() {
		// If the connection ends between two chunks, fasthttp takes the end for the last chunk.
		err = io.ErrUnexpectedEOF
	}
	switch {
	case errors.Is(err, io.EOF), b.read == b.Length:
		b.Ended.Store(true)
	case err != nil:
		b.broken.Store(&err)
	}
	return n, err
}
