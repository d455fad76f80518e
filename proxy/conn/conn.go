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
	net.Conn  // the socket, or TLS above it
	socket    *socket
	set       *Set
	crowded   bool // the limit of open connections is exceeded
	Account   Account
	InputLeft bool // the response was sent before the whole request was read
	// After Stall, a client that leaves a piece unread is disconnected; 0 means never.
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
	}
}

// New returns the Conn of an accepted connection.
func New(accepted net.Conn) *Conn {
	s := newSocket(accepted)
	return &Conn{
		Conn:    s,
		socket:  s,
		Account: Account{remote: accepted.RemoteAddr()},
	}
}

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
	records := &records{}
	c.socket.reading.records = records
	c.socket.handshake = &handshake{account: &c.Account}
	err = t.Handshake()
	c.socket.handshake = nil
	c.Waited()
	if err != nil {
		c.Account.HeadEnds()
		return "", err
	}
	records.whole, records.idle = 0, 0
	c.Account.handshakeEnds()
	state := t.ConnectionState()
	c.TLSState = &state
	return state.NegotiatedProtocol, t.SetDeadline(time.Time{})
}

// Crowded implements exchange.Conn.
func (c *Conn) Crowded() bool { return c.crowded }

// HoldAs implements exchange.Conn.
func (c *Conn) HoldAs(user string, take func() (giveBack func(), ok bool)) bool {
	first, ok := c.Account.holdAs(user, take)
	if first && c.set != nil {
		c.set.known(c)
	}
	return ok
}

// User implements exchange.Conn.
func (c *Conn) User() string { return c.Account.user() }

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

// WriteSoon writes a piece without waiting for the client. Earlier writes must be flushed.
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

// Gather makes reads wait for up to GatherTime, so that they bring more bytes. This ends after d.
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

// halfCloseTime limits the time for which a client may continue sending its request after an early
// response.
const halfCloseTime = 5 * time.Second

// Close implements net.Conn. If input is left, it ends the writing side first, and discards the
// input until the client hangs up. Closing with unread bytes would reset the connection, and the
// reset could overtake the response.
func (c *Conn) Close() error {
	if c.InputLeft {
		half, ok := c.Conn.(interface{ CloseWrite() error })
		if ok && half.CloseWrite() == nil && c.Flush() == nil {
			_ = c.SetReadDeadline(time.Now().Add(halfCloseTime))
			_, _ = io.Copy(io.Discard, c)
		}
	}
	c.Account.HeadEnds()
	if c.set != nil {
		// TLS may wait for a client that does not read, and Cut ends this wait.
		defer c.set.remove(c)
	}
	c.Account.close()
	return c.Conn.Close()
}

var longAgo = time.Unix(1, 0)

// Interrupt makes reads fail.
func (c *Conn) Interrupt() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.mu.interrupted = true
	_ = c.SetReadDeadline(longAgo)
}

// Resume ends an interruption. Over HTTP/1.1 it ends with its request: the body may have ended at
// the same time, and then the connection stays open.
func (c *Conn) Resume() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.mu.interrupted = false
}

func isTimeout(err error) bool { return errors.Is(err, os.ErrDeadlineExceeded) }
