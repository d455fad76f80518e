package exchange

import (
	"cmp"
	"errors"
	"io"
	"slices"
	"sync/atomic"
	"time"
)

// Body is a request's body. If it is not read to its end, its HTTP/1.1 connection must close,
// because fasthttp would read the rest as the next request.
type Body struct {
	From   io.Reader
	Client Deadliner     // limits the time of reads from From; nil for no limit
	Pause  time.Duration // the time for which the client may send nothing
	Shared bool          // all bodies of the connection share one window, as over HTTP/2
	Length int64         // in bytes, -1 if unknown
	Most   int64         // maximum length, in bytes; 0 means no limit
	// The body may be read before the request is sent, and kept until the response.
	Keep  bool
	Room  int64       // memory for a body that is kept, if it is longer than BodyAhead
	Ended atomic.Bool // all bytes have been read

	read   int64
	began  time.Time             // the time of the first read
	broken atomic.Pointer[error] // set if the client's body is malformed or too long
	halted atomic.Bool           // the proxy interrupts the client
	ahead  []byte                // bytes that ReadAhead has read
	after  error                 // the last error of ReadAhead
}

// Deadliner is a client that must send the next bytes of a body in time.
type Deadliner interface {
	// ReadUntil makes reads fail after t, unless t is zero.
	ReadUntil(t time.Time)
}

// BodyAhead is the number of bytes of a body that are read before the request is forwarded.
const BodyAhead = 64 << 10

// ReadAhead reads the beginning of a body while its request waits, if an unread body would block
// all other bodies of the connection.
func (b *Body) ReadAhead() {
	if b == nil || !b.Shared {
		return
	}
	b.fill(BodyAhead)
	b.Client.ReadUntil(time.Time{})
	b.began = time.Time{} // the wait does not count as the client's time
}

// Fill reads a body that may be kept, up to BodyAhead or Room, and reports whether it is longer.
func (b *Body) Fill() (longer bool) {
	most := max(BodyAhead, b.Room)
	if b.Length > most {
		return true
	}
	if b.Room > 0 {
		b.ahead = slices.Grow(b.ahead, max(0, int(cmp.Or(max(0, b.Length), most))-len(b.ahead)))
	}
	b.fill(int(most) + 1)
	return b.after == nil
}

// Whole reads a short body to its end and returns it. It returns nil if there is no body, or if it
// is longer than BodyAhead and Room, is broken or must not be kept. Then Read returns all of it.
func (b *Body) Whole() []byte {
	if b == nil || !b.Keep || b.Fill() || !errors.Is(b.after, io.EOF) ||
		b.Length >= 0 && b.Length != int64(len(b.ahead)) {
		return nil
	}
	whole := b.ahead
	b.ahead = nil
	if whole == nil {
		whole = []byte{}
	}
	return whole
}

func (b *Body) fill(most int) {
	var piece [4 << 10]byte
	for len(b.ahead) < most && b.after == nil {
		var n int
		n, b.after = b.readMore(piece[:])
		b.ahead = append(b.ahead, piece[:n]...)
	}
}

// A client must send a body with a limited length within leastTime and the time that the body takes
// at leastRate, in bytes a second. Kube-apiserver allows a minute for the whole request. A body
// without a limit, such as a stream to a pod, may be slower.
const leastTime, leastRate = time.Minute, 16 << 10

func (b *Body) deadline() time.Time {
	now := time.Now()
	if b.began.IsZero() {
		b.began = now
	}
	until := now.Add(b.Pause)
	if b.Most > 0 {
		whole := b.began.Add(max(b.Pause, leastTime) + time.Duration(b.read/leastRate)*time.Second)
		if whole.Before(until) {
			return whole
		}
	}
	return until
}

// ErrBodyTooLarge says that a body exceeds its maximum length.
var ErrBodyTooLarge = errors.New("request body is too large")

// Failure returns the error in the part of a body that was read, or nil.
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
	if b.Client != nil {
		b.Client.ReadUntil(b.deadline())
	}
	n, err := b.From.Read(p)
	b.read += int64(n)
	if b.Most > 0 && b.read > b.Most {
		n, err = 0, ErrBodyTooLarge
		b.broken.Store(&err)
		return n, err
	}
	switch {
	case errors.Is(err, io.EOF), b.read == b.Length:
		b.Ended.Store(true)
	case err != nil && !b.halted.Load():
		b.broken.Store(&err)
	}
	return n, err
}

// Halt must be called before the proxy itself makes reads fail: Failure returns no such errors.
func (b *Body) Halt() { b.halted.Store(true) }
