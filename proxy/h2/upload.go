package h2

import (
	"io"
	"math"
	"os"
	"sync"
	"time"

	"golang.org/x/net/http2"
)

type upload struct {
	Declared int64 // declared length, -1 if it is unknown
	Expects  bool  // the client waits for 100 Continue
	id       uint32
	client   uploader
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

type uploader interface {
	// goOn asks for the body that was announced (100 Continue).
	goOn()
	// giveBack returns bytes to the connection's window, and if toStream, to the stream's.
	giveBack(n int64, toStream bool)
}

// newUpload returns a body of which up to window bytes may have arrived without being read.
func newUpload(id uint32, window int64, from uploader) *upload {
	b := &upload{
		Declared: -1,
		id:       id,
		client:   from,
	}
	b.mu.changed = sync.NewCond(&b.mu)
	b.mu.window = window
	b.mu.late = time.AfterFunc(math.MaxInt64, func() {
		b.client.giveBack(b.Fail(os.ErrDeadlineExceeded), false)
	})
	return b
}

func (b *upload) Ended() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.mu.ended
}

// Add adds the bytes of a DATA frame, whose size includes padding. If reading has failed, or the
// body is longer than declared, the bytes are unwanted, because no reader may read them.
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

func (b *upload) Read(p []byte) (int, error) {
	if b.Expects {
		b.Expects = false
		b.client.goOn()
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
	b.client.giveBack(int64(n), !ended)
	return n, nil
}

// intake is the window in which a connection receives the bodies of all its requests.
type intake struct {
	w *writer // its lock guards the fields below

	left int64 // bytes that the client may send
	owed int64 // received bytes not yet returned by WINDOW_UPDATE
}

// giveBack returns received bytes to the windows of the connection and of s, which may be nil.
func (i *intake) giveBack(s *stream, n int64) {
	if n == 0 {
		return
	}
	i.w.mu.Lock()
	given := i.giveBackLocked(s, n)
	i.w.floodLocked()
	i.w.unlock()
	if given {
		i.w.flushSoon()
	}
}

// giveBackLocked does the same as giveBack, and reports whether it appended a frame.
func (i *intake) giveBackLocked(s *stream, n int64) (given bool) {
	i.left += n
	i.owed += n
	given = i.returnLocked(0, &i.owed)
	if s != nil && s.err == nil && !s.done {
		s.owed += n
		given = i.returnLocked(s.id, &s.owed) || given
	}
	return given
}

// returnLocked appends a WINDOW_UPDATE if there are enough owed bytes for a frame.
func (i *intake) returnLocked(id uint32, owed *int64) bool {
	const least = 4 << 10
	if *owed < least {
		return false
	}
	i.w.mu.buf = appendWindowUpdate(i.w.bufLocked(), id, *owed)
	i.w.mu.control += resetSize
	*owed = 0
	return true
}
