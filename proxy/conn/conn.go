package conn

import (
	"context"
	"crypto/tls"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/watchproxy/watchproxy/proxy/exchange"
)

// Conn is a client's connection. While a handler runs, nobody reads it, so that
// a client which leaves would go unnoticed until something is written; WhenGone
// reads ahead in that time. What it read is given to the next reader.
//
// Its methods are called by one goroutine at a time, as fasthttp does.
type Conn struct {
	net.Conn
	socket      *socket // below; nil in tests without one
	set         *Set
	nonblocking bool // so is the socket
	// ahead was read and not given to the reader yet. Its first bytes, as many as head, are
	// the head of a request; see Read.
	ahead []byte
	head  int
	eof   atomic.Bool // a read failed: nothing more comes
	err   error
	turn  turn
	// abandoned is called by Close while a hijack was asked for and has not
	// begun: fasthttp drops it if the connection breaks in between.
	Abandoned func()
	Unread    bool // part of a request was not read when it was answered
	// stall is how long a write may take at least, unless it is 0: a client that stops
	// reading is cut then.
	Stall    time.Duration
	until    time.Time // the deadline for writes, zero for none
	TLSState *tls.ConnectionState
	crowded  atomic.Bool // more connections are open than may be

	mu struct {
		sync.Mutex
		interrupted bool
		waiting     bool // for a request, of which nothing has come
		draining    bool // no further request is waited for
		closed      bool
		user        string // that the connection counts for
		counted     func() // takes it out of the count; nil if it does not count
	}
}

// New returns the connection of a client that was accepted.
func New(accepted net.Conn) *Conn {
	s := newSocket(accepted)
	s.limitUnsent()
	return &Conn{Conn: s, socket: s}
}

// SetIdle tells that fasthttp waits for a request, or has got one.
func (c *Conn) SetIdle(idle bool) { c.turn.idle = idle }

// GoesOn tells that fasthttp's turn is over, and the connection is not.
func (c *Conn) GoesOn() bool { return c.turn.again }

// HeadLength is the length of a request's head that was read, 0 if it is not complete.
func (c *Conn) HeadLength() int { return c.head }

// Ended tells that nothing more comes from the client.
func (c *Conn) Ended() *atomic.Bool { return &c.eof }

// IsNonblocking tells whether writes do not wait for the client.
func (c *Conn) IsNonblocking() bool { return c.socket.isNonblocking() }

// Unsettled tells whether something is left to be written.
func (c *Conn) Unsettled() bool { return c.socket.unsettled() }

// EndRead ends a wait of the reader.
func (c *Conn) EndRead() { _ = c.SetReadDeadline(longAgo) }

// Crowded implements Conn.
func (c *Conn) Crowded() bool { return c.crowded.Load() }

// HoldAs implements Conn.
func (c *Conn) HoldAs(user string, take func() (giveBack func(), ok bool)) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.mu.closed || c.mu.counted != nil && c.mu.user == user {
		return true // a handler may be later than the end of its connection
	}
	counted, ok := take()
	if !ok {
		return false
	}
	if c.mu.counted != nil {
		c.mu.counted()
	}
	c.mu.user, c.mu.counted = user, counted
	return true
}

// Known tells whether the connection counts for a user: a request was authenticated.
func (c *Conn) Known() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.mu.counted != nil
}

// Write implements net.Conn. A deadline is good for several writes, as to set one takes as
// long as a small part of a write: it leaves each of them stall at least, and half as much
// again at most.
func (c *Conn) Write(p []byte) (int, error) {
	if !c.nonblocking {
		if err := c.limitWrite(); err != nil {
			return 0, err
		}
	}
	return c.Conn.Write(p)
}

// limitWrite sees to the deadline of a write.
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

// Pumpable tells whether something can be written without waiting for the client.
func (c *Conn) Pumpable() bool { return c.socket != nil && c.socket.raw != nil }

// StartNonblocking has writes not wait for the client. What does not wait needs no deadline.
func (c *Conn) StartNonblocking() {
	_ = c.SetWriteDeadline(time.Time{})
	c.socket.startNonblocking()
	c.nonblocking = true
}

// Settle writes what the socket has left.
func (c *Conn) Settle() error {
	if err := c.limitWrite(); err != nil {
		return err
	}
	c.until = time.Time{} // the socket takes it back
	return c.socket.settle()
}

// StopNonblocking settles, and has writes wait again.
func (c *Conn) StopNonblocking() {
	_ = c.Settle() // the client may be gone
	c.socket.stopNonblocking()
	c.nonblocking = false
}

// SetWriteDeadline implements net.Conn.
func (c *Conn) SetWriteDeadline(t time.Time) error {
	c.until = t
	return c.Conn.SetWriteDeadline(t)
}

// SetDeadline implements net.Conn. Fasthttp takes deadlines back when it hands a connection
// over.
func (c *Conn) SetDeadline(t time.Time) error {
	c.until = t
	return c.Conn.SetDeadline(t)
}

// Unlimited lets the client be silent.
func (c *Conn) Unlimited() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.mu.interrupted {
		_ = c.SetReadDeadline(time.Time{})
	}
}

// ReadUntil gives the client a while to send more.
func (c *Conn) ReadUntil(t time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.mu.interrupted {
		_ = c.SetReadDeadline(t)
	}
}

// Close implements net.Conn. Fasthttp closes a connection when it has no request for it at the
// moment; that is not its end.
func (c *Conn) Close() error {
	if c.turn.again {
		return nil
	}
	if f := c.Abandoned; f != nil {
		c.Abandoned = nil
		f()
	}
	if c.Unread {
		c.linger()
	}
	if c.set != nil {
		c.set.remove(c)
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

// lingerTime bounds how long a client that was answered early may go on
// sending its request.
const lingerTime = 5 * time.Second

// linger says that nothing more is written and forgets what the client still
// sends, until it has read that and hangs up. Closing a connection with unread
// bytes would reset it, and the reset overtake the answer.
func (c *Conn) linger() {
	if half, ok := c.Conn.(interface{ CloseWrite() error }); ok && half.CloseWrite() == nil {
		_ = c.SetReadDeadline(time.Now().Add(lingerTime))
		_, _ = io.Copy(io.Discard, c.Conn)
	}
}

var longAgo = time.Unix(1, 0)

// WhenGone implements Client. A client that sends more than aheadMax meanwhile
// is treated as one that left.
func (c *Conn) WhenGone(gone context.CancelFunc) (stop func()) {
	if c.err != nil {
		return func() {} // it is known to be gone
	}
	c.Unlimited()
	stopping, done := make(chan struct{}), make(chan struct{})
	var read []byte
	var err error
	go func() {
		defer close(done)
		var scratch [512]byte
		for err == nil && len(read) < exchange.AheadMax {
			var n int
			n, err = c.Conn.Read(scratch[:])
			read = append(read, scratch[:n]...)
		}
		select {
		case <-stopping:
		default:
			gone()
		}
	}()
	return func() {
		close(stopping)
		_ = c.SetReadDeadline(longAgo) // wakes the reader
		<-done
		_ = c.SetReadDeadline(time.Time{})
		c.ahead = append(c.ahead, read...)
		if err != nil && !isTimeout(err) {
			c.err = err
		}
	}
}

// DrainUntilGone reads and forgets whatever the client of a stream still sends,
// until it leaves, and then calls gone.
func (c *Conn) DrainUntilGone(gone context.CancelFunc) (stop func()) {
	c.Unlimited()
	done := make(chan struct{})
	go func() {
		defer close(done)
		defer gone()
		c.ReadUntilGone(func() {})
	}()
	return func() {
		_ = c.SetReadDeadline(longAgo)
		<-done
	}
}

// Interrupt implements Client.
func (c *Conn) Interrupt() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.mu.interrupted = true
	_ = c.SetReadDeadline(longAgo)
}

// ReadUntilGone reads and forgets what the client sends, until it leaves or somebody else
// sets a deadline for reading. It calls came each time that something has come.
func (c *Conn) ReadUntilGone(came func()) {
	var scratch [512]byte
	for {
		if _, err := c.Conn.Read(scratch[:]); err != nil {
			return
		}
		came()
	}
}

func isTimeout(err error) bool {
	ne, ok := err.(net.Error) //nolint:errorlint // what a connection returns is not wrapped
	return ok && ne.Timeout()
}
