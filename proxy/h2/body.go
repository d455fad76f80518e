package h2

import (
	"io"
	"math"
	"os"
	"sync"
	"time"

	"golang.org/x/net/http2"
)

// body is a request's body while it arrives.
type body struct {
	s        *stream
	declared int64 // declared length, -1 if it is unknown
	expects  bool  // the client waits for 100 Continue
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

func newBody(s *stream) *body {
	b := &body{s: s, declared: -1}
	b.mu.changed = sync.NewCond(&b.mu)
	b.mu.window = windowStream
	b.mu.late = time.AfterFunc(math.MaxInt64, func() { s.c.giveBack(nil, b.fail(os.ErrDeadlineExceeded)) })
	return b
}

func (b *body) ended() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.mu.ended
}

// add adds the bytes of a DATA frame, whose size includes padding. If reading has failed, the bytes
// are returned as unwanted, because no reader will read them.
func (b *body) add(p []byte, end bool, size int64) (unwanted int64, err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.mu.window -= size; b.mu.window < 0 {
		return int64(len(p)), http2.StreamError{StreamID: b.s.id, Code: http2.ErrCodeFlowControl}
	}
	b.mu.window += size - int64(len(p)) // padding returns to the window
	if b.mu.err == nil {
		b.mu.data = append(b.mu.data, p...)
	} else {
		unwanted = int64(len(p))
	}
	b.mu.got += int64(len(p))
	if b.declared >= 0 && (b.mu.got > b.declared || end && b.mu.got < b.declared) {
		return unwanted, http2.StreamError{StreamID: b.s.id, Code: http2.ErrCodeProtocol}
	}
	b.mu.ended = b.mu.ended || end
	b.mu.changed.Broadcast()
	return unwanted, nil
}

// fail makes reads fail. It returns the number of bytes that will not be read.
func (b *body) fail(err error) (unwanted int64) {
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

func (b *body) deadline(t time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.mu.late.Stop()
	if !t.IsZero() && b.mu.err == nil {
		b.mu.late.Reset(time.Until(t))
	}
}

// Read implements io.Reader.
func (b *body) Read(p []byte) (int, error) {
	if b.expects {
		b.expects = false
		b.s.c.goOn(b.s)
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
	if ended {
		b.s.c.giveBack(nil, int64(n))
	} else {
		b.s.c.giveBack(b.s, int64(n))
	}
	return n, nil
}
