package exchange

import (
	"errors"
	"io"
	"sync/atomic"
	"time"
)

// Body is a request's body. It knows whether it was read to its end: if not,
// the connection is of no further use, as fasthttp would take the rest of the
// body for the next request.
type Body struct {
	From   io.Reader
	Cut    *atomic.Bool // the client has ended the connection; nil if that shows in from
	Length int64        // in bytes, -1 if unknown
	read   int64
	Ended  atomic.Bool
	broken atomic.Pointer[error] // what the client sent is no body
	Most   int64                 // how long it may be, in bytes; 0 for any length
	Extend func()                // called before each read; nil for nothing
	began  time.Time             // when it was read first
	// suspend takes the deadline of reads back. It is nil over HTTP/1, where fasthttp has read
	// ahead.
	Suspend func()
	ahead   []byte // was read before anybody wanted it
	after   error  // what came of the last of those reads
}

// BodyAhead is how much of a body is read before the request is forwarded, in bytes; the rest is
// streamed.
const BodyAhead = 64 << 10

// ReadAhead reads the beginning of a body over HTTP/2, while its request waits. All bodies
// of a connection share one window: what is not read of this one would hold up the others.
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
	b.began = time.Time{} // the time that it waits is not the client's
}

// leastRate is how fast a client has to send a body that has a bound, in bytes a second. Each
// KiB gets it another second; a body without a bound may trickle, as one to a pod may.
const leastRate = 1 << 10

// Deadline is until when more of a body has to come, if a pause may be so long.
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

// ErrBodyTooLarge says that a body is longer than it may be.
var ErrBodyTooLarge = errors.New("request body is too large")

// Failure tells what is wrong with a body, as far as it was read.
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
		// fasthttp takes the client's end between two chunks for the last chunk.
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
