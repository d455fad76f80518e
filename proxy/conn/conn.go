package conn

import (
	"cmp"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"os"
	"sync"
	"time"

	"github.com/watchproxy/watchproxy/proxy/exchange"
	"github.com/watchproxy/watchproxy/proxy/fair"
)

// Conn is a client's connection. One goroutine at a time reads from it, and one writes.
type Conn struct {
	net.Conn // the socket, or TLS above it
	socket   *socket
	set      *Set
	stranger stranger // the set's lock guards it
	heads    *Heads   // nil counts nothing
	head     headCount
	crowded  bool // the limit of open connections is exceeded
	Unread   bool // the response was sent before the whole request was read
	// Stall is the time for which the client may leave a piece unread. After that, it is
	// disconnected; 0 means never.
	Stall time.Duration
	// Guard limits the memory of bytes whose writes wait for the client. It may be nil.
	Guard    *fair.Guard
	TLSState *tls.ConnectionState

	mu struct {
		sync.Mutex
		interrupted bool
		first       bool      // the connection waits for its first request
		waiting     time.Time // until then, it waits for a request; zero if it does not
		drain       *Drain    // limits these waits; nil before the drain
		closed      bool
		user        string    // the user against whose limit this connection counts
		counted     func()    // ends the count; nil if no user's limit counts the connection
		shook       headCount // what TLS keeps of a stranger's handshake
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
	c.Wait(until, true)
	read := int64(0)
	c.socket.reading.count = func(n int) bool {
		read += int64(n)
		return read <= handshakeMost && c.HeadGrows(handshakeKept*(read-handshakeFree)+headFree)
	}
	records := &records{}
	c.socket.shaking, c.socket.reading.records = true, records
	err = t.Handshake()
	c.socket.shaking, c.socket.reading.count = false, nil
	c.Waited()
	if err != nil {
		c.HeadEnds()
		return "", err
	}
	records.whole, records.idle = 0, 0
	c.mu.Lock()
	c.mu.shook, c.head = c.head, headCount{}
	c.mu.Unlock()
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
	c.mu.shook.end() // a user has few connections
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

// Read implements net.Conn.
func (c *Conn) Read(p []byte) (n int, err error) {
	n, err = c.Conn.Read(p)
	if r := c.socket.reading.records; r != nil && n > 0 {
		r.data = true
	}
	return n, err
}

// Write implements net.Conn. It waits for the client.
func (c *Conn) Write(p []byte) (n int, err error) {
	for len(p) > 0 {
		piece := p[:min(len(p), exchange.PieceSize)]
		if err := c.WriteSoon(piece); err != nil {
			return n, err
		}
		if err := c.Flush(); err != nil {
			return n, err
		}
		n, p = n+len(piece), p[len(piece):]
	}
	return n, nil
}

// WriteSoon writes a piece without waiting for the client. Earlier writes must be flushed. TLS makes
// records of 16 KiB and would write each of them by itself.
func (c *Conn) WriteSoon(p []byte) error {
	const few = 4 << 10 // TLS makes one or two records of so many bytes
	if c.TLSState == nil || len(p) <= few {
		_, err := c.Conn.Write(p)
		return err
	}
	c.socket.collect()
	_, err := c.Conn.Write(p)
	return cmp.Or(err, c.socket.flushNow())
}

// Unflushed reports whether the socket keeps unwritten bytes.
func (c *Conn) Unflushed() bool {
	c.socket.mu.Lock()
	defer c.socket.mu.Unlock()
	return c.socket.mu.left != nil
}

// Flush writes the bytes that the socket keeps, and waits for the client. If the guard has refused
// the client room, the next write would fail, so this one fails, too.
func (c *Conn) Flush() error {
	if !c.Unflushed() {
		return nil
	}
	if c.Stall > 0 {
		_ = c.SetWriteDeadline(time.Now().Add(c.Stall)) // writes to a broken connection fail anyway
	}
	c.Guard.Begin()
	err := c.socket.flush()
	if ok := c.Guard.End(); !ok {
		return cmp.Or(err, os.ErrDeadlineExceeded)
	}
	if c.Stall > 0 {
		_ = c.SetWriteDeadline(time.Time{})
	}
	return err
}

// Gather makes reads wait for up to GatherTime, so that they bring more bytes. This ends after d. It
// is for a client that sends many small frames of which only the sum matters.
func (c *Conn) Gather(d time.Duration) { c.socket.gather.start(d) }

// LimitWrites implements exchange.TunnelClient. Stall is 0 in a tunnel, so no write sets another
// deadline.
func (c *Conn) LimitWrites(until time.Time) { _ = c.SetWriteDeadline(until) }

// ReadUntil sets the deadline for reads; a zero t means none. It does nothing between Interrupt
// and the end of the request.
func (c *Conn) ReadUntil(t time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.mu.interrupted {
		_ = c.SetReadDeadline(t)
	}
}

// Close implements net.Conn.
func (c *Conn) Close() error {
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
	c.mu.shook.end()
	c.mu.Unlock()
	return c.Conn.Close()
}

// halfCloseTime limits the time for which a client may continue sending its request after an early
// response.
const halfCloseTime = 5 * time.Second

// halfClose ends the writing side and discards the client's input until the client hangs up.
// Closing with unread bytes would reset the connection, and the reset could overtake the response.
func (c *Conn) halfClose() {
	half, ok := c.Conn.(interface{ CloseWrite() error })
	if ok && half.CloseWrite() == nil && c.Flush() == nil {
		_ = c.SetReadDeadline(time.Now().Add(halfCloseTime))
		_, _ = io.Copy(io.Discard, c)
	}
}

var longAgo = time.Unix(1, 0)

// Interrupt makes reads fail.
func (c *Conn) Interrupt() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.mu.interrupted = true
	_ = c.SetReadDeadline(longAgo)
}

// Resume ends an interruption. Over HTTP/1.1 it ends with its request: the body may have ended at the
// same time, and then the connection stays open.
func (c *Conn) Resume() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.mu.interrupted = false
}

func isTimeout(err error) bool { return errors.Is(err, os.ErrDeadlineExceeded) }
