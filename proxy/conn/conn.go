package conn

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/watchproxy/watchproxy/proxy/exchange"
	"github.com/watchproxy/watchproxy/proxy/fair"
)

// Conn is a client's connection. While a handler runs, fasthttp does not read the connection. If
// the client left, the proxy would notice only at its next write. So CancelWhenGone reads ahead
// while the handler runs, and the next reader receives those bytes.
//
// As in fasthttp, only one goroutine at a time may call its methods.
type Conn struct {
	net.Conn    // the socket, or TLS above it
	socket      *socket
	set         *Set
	stranger    stranger // the set's lock guards it
	heads       *Heads   // nil counts nothing
	head        headCount
	nonblocking bool // the socket is nonblocking
	crowded     bool // the limit of open connections is exceeded
	// ahead has bytes that were read but not yet passed to the reader. If HeadLength is not 0, they
	// begin with the head of a request; see Read.
	ahead      []byte
	HeadLength int         // in bytes, 0 if the head is incomplete
	LongHead   bool        // the connection has a large buffer while it is served
	Ended      atomic.Bool // a read failed, so no more bytes arrive
	err        error
	beyond     bool // fasthttp has read beyond the head, so its buffer may have a part of the next request
	discarded  bool // some input of a stream's client was discarded
	Idle       bool // a request was answered and the next request has not begun
	// HandedBack is set to true if fasthttp returns the connection, which stays open. It belongs to
	// the goroutine that runs fasthttp: after a hijack, another goroutine has the connection.
	HandedBack *bool
	since      time.Time // when the wait for a request began
	// Abandoned is called by Close if a hijack was requested but has not begun. If the connection
	// breaks before the hijack begins, fasthttp drops the hijack.
	Abandoned func()
	Unread    bool // the response was sent before the whole request was read
	// Stall is the minimum time for which a write may block. After that, the client is
	// disconnected; 0 means never.
	Stall time.Duration
	until time.Time // deadline for writes, zero for none
	// Guard limits the memory of bytes whose writes wait for the client. It may be nil.
	Guard    *fair.Guard
	TLSState *tls.ConnectionState

	mu struct {
		sync.Mutex
		interrupted bool
		answered    bool      // a request was answered
		waiting     time.Time // until then, the connection waits for the first byte of a request; zero if it does not
		drain       *Drain    // limits these waits; nil before the drain
		closed      bool
		user        string // the user against whose limit this connection counts
		counted     func() // ends the count; nil if no user's limit counts the connection
	}
}

// New returns the Conn of an accepted connection.
func New(accepted net.Conn) *Conn {
	s := newSocket(accepted)
	return &Conn{Conn: s, socket: s}
}

// handshakeTimeout limits the time of a TLS handshake.
const handshakeTimeout = 10 * time.Second

// Handshake runs the TLS handshake and returns the negotiated protocol, or "" without TLS.
func (c *Conn) Handshake() (protocol string, err error) {
	t, ok := c.Conn.(*tls.Conn)
	if !ok {
		return "", nil
	}
	until := time.Now().Add(handshakeTimeout)
	if err := t.SetWriteDeadline(until); err != nil {
		return "", err
	}
	c.wait(until)
	read := int64(0)
	c.socket.reading.count = func(n int) bool {
		read += int64(n)
		return c.HeadGrows(read - handshakeFree + headFree)
	}
	err = t.Handshake()
	c.socket.reading.count = nil
	c.HeadEnds()
	c.waited()
	if err != nil {
		return "", err
	}
	state := t.ConnectionState()
	c.TLSState = &state
	return state.NegotiatedProtocol, t.SetDeadline(time.Time{})
}

// Crowded implements exchange.Conn.
func (c *Conn) Crowded() bool { return c.crowded }

// HoldAs implements exchange.Conn.
func (c *Conn) HoldAs(user string, take func() (giveBack func(), ok bool)) bool {
	first, ok := c.holdAs(user, take)
	if first && c.set != nil {
		c.set.known(c)
	}
	return ok
}

// holdAs also reports whether the connection was a stranger's.
func (c *Conn) holdAs(user string, take func() (giveBack func(), ok bool)) (first, ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.mu.closed || c.mu.counted != nil && c.mu.user == user {
		return false, true // a handler may outlive its connection
	}
	counted, ok := take()
	if !ok {
		return false, false
	}
	if first = c.mu.counted == nil; !first {
		c.mu.counted()
	}
	c.mu.user, c.mu.counted = user, counted
	return first, true
}

// Known reports whether the connection counts against a user's limit. It does so once one of its
// requests was authenticated.
func (c *Conn) Known() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.mu.counted != nil
}

// User implements exchange.Conn.
func (c *Conn) User() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.mu.user
}

// Write implements net.Conn. Setting a deadline for each write would cost time, so several writes
// share a deadline. Each write may block for at least Stall and at most 1.5 times as long.
func (c *Conn) Write(p []byte) (n int, err error) {
	if c.nonblocking {
		return c.writeTogether(p)
	}
	err = c.waitFor(func() (err error) {
		n, err = c.writeTogether(p)
		return err
	})
	return n, err
}

// waitFor runs a write that waits for the client. If the guard has refused the client room, the next
// write would fail, so this one fails, too.
func (c *Conn) waitFor(write func() error) error {
	if err := c.limitWrite(); err != nil {
		return err
	}
	c.Guard.Begin()
	err := write()
	if ok := c.Guard.End(); !ok && err == nil {
		return os.ErrDeadlineExceeded
	}
	return err
}

// limitWrite sets the deadline of a write.
func (c *Conn) limitWrite() error {
	most := c.Stall + c.Stall/2
	switch left := time.Until(c.until); {
	case c.Stall == 0 && !c.until.IsZero():
		return c.SetWriteDeadline(time.Time{})
	case c.Stall > 0 && (left < c.Stall || left > most):
		return c.SetWriteDeadline(time.Now().Add(most))
	}
	return nil
}

// Gather makes reads wait for up to GatherTime, so that they bring more bytes. This ends after d. It
// is for a client that sends many small frames of which only the sum matters.
func (c *Conn) Gather(d time.Duration) { c.socket.gather.start(d) }

// Pumpable reports whether the connection can be nonblocking.
func (c *Conn) Pumpable() bool { return c.socket.now != nil }

// StartNonblocking makes writes return without waiting for the client. Such writes need no
// deadline.
func (c *Conn) StartNonblocking() {
	_ = c.SetWriteDeadline(time.Time{})
	c.socket.setNonblocking(true)
	c.nonblocking = true
}

// Unsettled reports whether the socket keeps unwritten bytes.
func (c *Conn) Unsettled() bool {
	c.socket.mu.Lock()
	defer c.socket.mu.Unlock()
	return len(c.socket.mu.left) > 0
}

// Settle writes the bytes that the socket keeps. The socket removes the deadline.
func (c *Conn) Settle() error {
	defer func() { c.until = time.Time{} }()
	return c.waitFor(c.socket.settle)
}

// StopNonblocking writes the remaining bytes and makes writes wait again.
func (c *Conn) StopNonblocking() {
	_ = c.Settle() // the client may be gone
	c.socket.setNonblocking(false)
	c.nonblocking = false
}

// SetWriteDeadline implements net.Conn.
func (c *Conn) SetWriteDeadline(t time.Time) error {
	c.until = t
	return c.Conn.SetWriteDeadline(t)
}

// LimitWrites implements exchange.TunnelClient. It does not change c.until, which belongs to the
// goroutine that writes. Stall is 0 in a tunnel, so no write sets another deadline.
func (c *Conn) LimitWrites(until time.Time) { _ = c.Conn.SetWriteDeadline(until) }

// SetDeadline implements net.Conn. Fasthttp resets deadlines when it passes a connection on.
func (c *Conn) SetDeadline(t time.Time) error {
	c.until = t
	return c.Conn.SetDeadline(t)
}

// ReadUntil sets the deadline for reads; a zero t means none. It does nothing between Interrupt
// and the end of the request.
func (c *Conn) ReadUntil(t time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.mu.interrupted {
		_ = c.SetReadDeadline(t)
	}
}

// Close implements net.Conn. Fasthttp also calls Close for a connection that it returns. Such a
// connection stays open.
func (c *Conn) Close() error {
	if c.HandedBack != nil && *c.HandedBack {
		return nil
	}
	if f := c.Abandoned; f != nil {
		c.Abandoned = nil
		f()
	}
	if c.Unread {
		c.halfClose()
	}
	c.HeadEnds()
	if c.set != nil {
		defer c.set.remove(c) // TLS may wait for a client that does not read, and Cut ends this wait
	}
	c.mu.Lock()
	c.mu.closed = true
	if c.mu.counted != nil {
		c.mu.counted()
		c.mu.counted = nil
	}
	c.mu.Unlock()
	return c.Conn.Close()
}

// halfCloseTime limits the time for which a client may continue sending its request after an early
// response.
const halfCloseTime = 5 * time.Second

// halfClose ends the writing side and discards the client's input until the client hangs up.
// Closing with unread bytes would reset the connection, and the reset could overtake the response.
func (c *Conn) halfClose() {
	if half, ok := c.Conn.(interface{ CloseWrite() error }); ok && half.CloseWrite() == nil {
		_ = c.SetReadDeadline(time.Now().Add(halfCloseTime))
		_, _ = io.Copy(io.Discard, c.Conn)
	}
}

var longAgo = time.Unix(1, 0)

// CancelWhenGone implements exchange.Client. A client that meanwhile sends more than AheadMax
// counts as gone.
func (c *Conn) CancelWhenGone(cancel context.CancelFunc) (stop func()) {
	if c.err != nil {
		cancel() // the client is known to be gone
		return func() {}
	}
	c.ReadUntil(time.Time{})
	var stopping atomic.Bool
	var reading sync.WaitGroup
	var read []byte
	var err error
	reading.Go(func() {
		var scratch [512]byte
		for err == nil && len(read) < exchange.AheadMax && c.HeadGrows(int64(len(c.ahead)+len(read))) {
			var n int
			n, err = c.Conn.Read(scratch[:])
			read = append(read, scratch[:n]...)
		}
		if !stopping.Load() {
			cancel()
		}
	})
	return func() {
		stopping.Store(true)
		_ = c.SetReadDeadline(longAgo) // wakes the reader
		reading.Wait()
		_ = c.SetReadDeadline(time.Time{})
		c.ahead = append(c.ahead, read...)
		if err != nil && !isTimeout(err) {
			c.err = err
		}
	}
}

// aheadOfStream is the number of bytes that a stream's client may send ahead, for its next requests.
const aheadOfStream = 8 << 10

// WatchInput reads the input of a stream's client. It calls cancel when the client leaves.
func (c *Conn) WatchInput(cancel context.CancelFunc) (stop func()) {
	c.ReadUntil(time.Time{})
	var reading sync.WaitGroup
	reading.Go(func() {
		defer cancel()
		c.ReadInput(func() {})
	})
	return func() {
		_ = c.SetReadDeadline(longAgo)
		reading.Wait()
	}
}

// ReadInput reads the input of a stream's client until the client leaves or Interrupt is called. It
// keeps the beginning of the next requests, and discards the rest. It calls onRead after each read.
func (c *Conn) ReadInput(onRead func()) {
	var scratch [512]byte
	for {
		n, err := c.Conn.Read(scratch[:])
		switch {
		case len(c.ahead)+n <= aheadOfStream && c.HeadGrows(int64(len(c.ahead)+n)):
			c.ahead = append(c.ahead, scratch[:n]...)
		case n > 0:
			c.discarded = true
		}
		if err != nil {
			if !isTimeout(err) {
				c.err = err
			}
			return
		}
		onRead()
	}
}

// Pipelines reports whether the client has already sent some of its next request.
func (c *Conn) Pipelines() bool { return len(c.ahead) > 0 || c.beyond }

// Reusable reports whether another request can follow a stream. If so, it makes the connection ready
// for that request.
func (c *Conn) Reusable() bool {
	if c.err != nil || c.discarded {
		return false
	}
	c.Rest()
	c.since = time.Now()
	return true
}

// Interrupt implements exchange.Client.
func (c *Conn) Interrupt() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.mu.interrupted = true
	_ = c.SetReadDeadline(longAgo)
}

// Rest says that a request was answered. An interruption ends with its request: the body may have
// ended at the same time, and then the connection stays open.
func (c *Conn) Rest() {
	c.Idle = true
	c.mu.Lock()
	defer c.mu.Unlock()
	c.mu.interrupted, c.mu.answered = false, true
}

func isTimeout(err error) bool { return errors.Is(err, os.ErrDeadlineExceeded) }

// WriteWaiting writes p and waits for the client. The connection must be nonblocking, and earlier
// writes must be settled. TLS waits for nothing: only the bytes that it has made wait, so its answer
// to a client, such as new keys, never holds TLS's lock while the client does not read.
func (c *Conn) WriteWaiting(p []byte) error {
	c.socket.wait(true) // before the deadline is set, which an answer of TLS might reset
	defer c.socket.wait(false)
	return c.waitFor(func() error {
		_, err := c.writePieces(p, true)
		return err
	})
}

// writeTogether writes the records of each piece of p together.
func (c *Conn) writeTogether(p []byte) (n int, err error) {
	const few = 4 << 10 // TLS makes one or two records of so many bytes
	if c.TLSState == nil || len(p) <= few {
		return c.Conn.Write(p)
	}
	return c.writePieces(p, false)
}

func (c *Conn) writePieces(p []byte, wait bool) (n int, err error) {
	for len(p) > 0 && err == nil {
		c.socket.collect()
		var m int
		m, err = c.Conn.Write(p[:min(len(p), exchange.PieceSize)])
		err = cmp.Or(err, c.socket.writeCollected(wait))
		n, p = n+m, p[m:]
	}
	return n, err
}
