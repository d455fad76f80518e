package h2

import (
	"io"
	"math"
	"os"
	"sync"
	"time"

	"golang.org/x/net/http2"
)

// upload is a request's body while it arrives.
type upload struct {
	Declared int64 // declared length, -1 if it is unknown
	Expects  bool  // the client waits for 100 Continue
	id       uint32
	goOn     func()
	giveBack func(n int64, toStream bool)
	mu       struct {
		sync.Mutex
		changed *sync.Cond
		data    []byte
		window  int64
		ended   bool
		got     int64
		err     error
		late    *time.Timer // makes reads fail at the deadline
	}
}

// newUpload returns the body of a stream. window limits the bytes that have arrived and are not yet read.
// goOn asks the client for the body. giveBack returns bytes to the window of the connection, and to
// that of the stream if toStream is true.
func newUpload(id uint32, window int64, goOn func(), giveBack func(n int64, toStream bool)) *upload {
	b := &upload{Declared: -1, id: id, goOn: goOn, giveBack: giveBack}
	b.mu.changed = sync.NewCond(&b.mu)
	b.mu.window = window
	b.mu.late = time.AfterFunc(math.MaxInt64, func() { giveBack(b.Fail(os.ErrDeadlineExceeded), false) })
	return b
}

// Ended reports whether all bytes have arrived.
func (b *upload) Ended() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.mu.ended
}

// Add adds the bytes of a DATA frame, whose size includes padding. If reading has failed, or the body
// is longer than declared, the bytes are returned as unwanted, because no reader may read them.
func (b *upload) Add(p []byte, end bool, size int64) (unwanted int64, err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.mu.window -= size; b.mu.window < 0 {
		return int64(len(p)), http2.StreamError{StreamID: b.id, Code: http2.ErrCodeFlowControl}
	}
	b.mu.window += size - int64(len(p)) // padding returns to the window
	b.mu.got += int64(len(p))
	longer := b.Declared >= 0 && b.mu.got > b.Declared
	if b.mu.err == nil && !longer {
		b.mu.data = append(b.mu.data, p...)
	} else {
		unwanted = int64(len(p))
	}
	if longer || end && b.mu.got < b.Declared {
		return unwanted, http2.StreamError{StreamID: b.id, Code: http2.ErrCodeProtocol}
	}
	b.mu.ended = b.mu.ended || end
	b.mu.changed.Broadcast()
	return unwanted, nil
}

// Fail makes reads fail. It returns the number of bytes that will not be read.
func (b *upload) Fail(err error) (unwanted int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.mu.err == nil {
		b.mu.err = err
	}
	b.mu.late.Stop()
	unwanted = int64(len(b.mu.data))
	b.mu.data = nil
	b.mu.changed.Broadcast()
	return unwanted
}

// ReadUntil implements exchange.Deadliner.
func (b *upload) ReadUntil(t time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.mu.late.Stop()
	if !t.IsZero() && b.mu.err == nil {
		b.mu.late.Reset(time.Until(t))
	}
}

// Read implements io.Reader.
func (b *upload) Read(p []byte) (int, error) {
	if b.Expects {
		b.Expects = false
		b.goOn()
	}
	b.mu.Lock()
	for len(b.mu.data) == 0 && !b.mu.ended && b.mu.err == nil {
		b.mu.changed.Wait()
	}
	if len(b.mu.data) == 0 {
		defer b.mu.Unlock()
		if b.mu.err != nil {
			return 0, b.mu.err
		}
		return 0, io.EOF
	}
	b.mu.late.Stop() // the client is not late before the next read
	n := copy(p, b.mu.data)
	if b.mu.data = b.mu.data[n:]; len(b.mu.data) == 0 {
		b.mu.data = nil
	}
	b.mu.window += int64(n)
	ended := b.mu.ended
	b.mu.Unlock()
	b.giveBack(int64(n), !ended)
	return n, nil
}
