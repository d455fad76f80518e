package proxy

import (
	"errors"
	"io"
	"sync/atomic"
	"time"
)

// body is a request's body. It knows whether it was read to its end: if not,
// the connection is of no further use, as fasthttp would take the rest of the
// body for the next request.
type body struct {
	from   io.Reader
	cut    *atomic.Bool // the client has ended the connection; nil if that shows in from
	length int64        // in bytes, -1 if unknown
	read   int64
	ended  atomic.Bool
	broken atomic.Pointer[error] // what the client sent is no body
	most   int64                 // how long it may be, in bytes; 0 for any length
	extend func()                // called before each read; nil for nothing
	began  time.Time             // when it was read first
	// suspend takes the deadline of reads back. It is nil over HTTP/1, where fasthttp has read
	// ahead.
	suspend func()
	ahead   []byte // was read before anybody wanted it
	after   error  // what came of the last of those reads
}

// readAhead reads the beginning of a body over HTTP/2, while its request waits. All bodies
// of a connection share one window: what is not read of this one would hold up the others.
func (b *body) readAhead() {
	if b == nil || b.suspend == nil {
		return
	}
	var piece [readSize]byte
	for len(b.ahead) < bodyAhead && b.after == nil {
		var n int
		n, b.after = b.readMore(piece[:])
		b.ahead = append(b.ahead, piece[:n]...)
	}
	b.suspend()
	b.began = time.Time{} // the time that it waits is not the client's
}

// leastRate is how fast a client has to send a body that has a bound, in bytes a second. Each
// KiB gets it another second; a body without a bound may trickle, as one to a pod may.
const leastRate = 1 << 10

// deadline is until when more of a body has to come, if a pause may be so long.
func (b *body) deadline(pause time.Duration) time.Time {
	now := time.Now()
	if b.began.IsZero() {
		b.began = now
	}
	until := now.Add(pause)
	if b.most > 0 {
		whole := b.began.Add(pause + time.Duration(b.read/leastRate)*time.Second)
		if whole.Before(until) {
			return whole
		}
	}
	return until
}

// errBodyTooLarge says that a body is longer than it may be.
var errBodyTooLarge = errors.New("request body is too large")

// failure tells what is wrong with a body, as far as it was read.
func (b *body) failure() error {
	if b == nil || b.broken.Load() == nil {
		return nil
	}
	return *b.broken.Load()
}

// Read implements io.Reader.
func (b *body) Read(p []byte) (int, error) {
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

func (b *body) readMore(p []byte) (int, error) {
	if b.extend != nil {
		b.extend()
	}
	n, err := b.from.Read(p)
	b.read += int64(n)
	if b.most > 0 && b.read > b.most {
		n, err = 0, errBodyTooLarge
		b.broken.Store(&err)
		return n, err
	}
	if b.length < 0 && errors.Is(err, io.EOF) && b.cut != nil && b.cut.Load() {
		// fasthttp takes the client's end between two chunks for the last chunk.
		err = io.ErrUnexpectedEOF
	}
	switch {
	case errors.Is(err, io.EOF), b.read == b.length:
		b.ended.Store(true)
	case err != nil:
		b.broken.Store(&err)
	}
	return n, err
}
