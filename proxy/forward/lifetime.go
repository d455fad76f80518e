package forward

import (
	"context"
	"errors"
	"io"
	"sync"
	"sync/atomic"

	"github.com/watchproxy/watchproxy/proxy/exchange"
)

// lifetime is the state machine of a forwarded request. The first of these events ends the request:
// upstream's side is cancelled, and its admission is released.
//
//	open    -- the response is closed, or there is none -->  closed
//	open    -- the client leaves ------------------------->  left
//	open    -- the proxy drains -------------------------->  drained (as if upstream had ended it)
//	open    -- the proxy stops before the response begins ->  stopped (the client gets an error)
//
// Independent of that, at most one party reads the client's connection, so that the next request
// can follow when nobody does:
//
//	upload  -- the body ends -->  watch, which sees the client leave
//	upload  -- finish --------->  nobody, after the client was interrupted
//	watch   -- finish --------->  nobody
//	watch   -- upgrade -------->  tunnel
//
// Upstream may begin its response during the upload, but cannot upgrade then.
type lifetime struct {
	*exchange.Request
	attempt *Attempt
	cancel  context.CancelFunc // of the request upstream
	once    sync.Once
	ended   atomic.Int32           // an ending
	undrain atomic.Pointer[func()] // stops waiting for the proxy's end

	released sync.Once

	mu        sync.Mutex
	reader    reader
	stopWatch func()
	uploaded  chan struct{} // closed after the transport's last access to the body
}

type ending = int32

const (
	open ending = iota
	closed
	left
	drained
	stopped
)

type reader int

const (
	upload reader = iota // upstream's transport reads the body
	watch
	tunnel
	nobody
)

// begin opens a lifetime. When over ends, the proxy drains, and when stopping ends, it stops.
func (l *lifetime) begin(over, stopping context.Context) {
	l.uploaded = make(chan struct{})
	undrain := context.AfterFunc(over, func() { l.end(drained) })
	unstop := context.AfterFunc(stopping, func() {
		if !l.attempt.begun.Load() {
			l.end(stopped)
		}
	})
	both := func() {
		undrain()
		unstop()
	}
	l.undrain.Store(&both) // end may have been called already, but then by one of the two
}

// end ends the request once. When it returns, the admission has been released.
func (l *lifetime) end(why ending) {
	l.once.Do(func() {
		l.ended.Store(why) // before a read sees that the request is cancelled
		l.cancel()
		if undrain := l.undrain.Load(); undrain != nil {
			(*undrain)()
		}
		l.attempt.Release()
	})
}

func (l *lifetime) watchClient() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.reader == upload {
		l.reader, l.stopWatch = watch, l.Client.CancelWhenGone(func() { l.end(left) })
	}
}

// finish releases both sides. When it returns, nothing reads the client's connection.
func (l *lifetime) finish() {
	l.end(closed)
	l.released.Do(func() {
		switch l.handOver(nobody) {
		case upload:
			if !l.Body.Ended.Load() {
				// Upstream has answered or failed before it had read the whole body.
				l.Client.Interrupt()
			}
			<-l.uploaded
		case watch:
			l.stopWatch()
		}
	})
}

// upgrade gives the client's connection to a tunnel. It returns false during the upload.
func (l *lifetime) upgrade() bool {
	l.mu.Lock()
	uploads := l.reader == upload
	l.mu.Unlock()
	if uploads {
		return false
	}
	if l.handOver(tunnel) == watch {
		l.stopWatch()
	}
	return true
}

func (l *lifetime) handOver(to reader) (from reader) {
	l.mu.Lock()
	defer l.mu.Unlock()
	from, l.reader = l.reader, to
	return from
}

// requestBody is a client's body for upstream's transport. The transport may read the body in
// another goroutine after the response has begun, and may close it during a read.
type requestBody struct {
	*lifetime
	reading sync.Mutex // held by Read
	shut    bool       // guarded by reading
	atEnd   bool       // guarded by reading
}

func (b *requestBody) Read(p []byte) (int, error) {
	b.reading.Lock()
	defer b.reading.Unlock()
	switch {
	case b.atEnd:
		return 0, io.EOF // a transport that knows the length still checks for more
	case b.shut:
		return 0, io.ErrClosedPipe
	}
	n, err := b.Body.Read(p)
	if errors.Is(err, io.EOF) {
		b.atEnd = true
		b.shutLocked()
		b.watchClient()
		return n, io.EOF
	}
	return n, err
}

func (b *requestBody) Close() error {
	b.mu.Lock()
	if b.reader == upload && !b.Body.Ended.Load() {
		b.Body.Halt()
		b.Client.Interrupt() // otherwise Close may wait for a read from a slow client
	}
	b.mu.Unlock()
	b.reading.Lock()
	defer b.reading.Unlock()
	b.shutLocked()
	return nil
}

func (b *requestBody) shutLocked() {
	if !b.shut {
		b.shut = true
		close(b.uploaded)
	}
}
