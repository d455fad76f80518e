package proxy

import (
	"context"
	"crypto/tls"
	"io"
	"net"
	"sync/atomic"
	"time"
)

// conn is a client's connection. While a handler runs, nobody reads it, so that
// a client which leaves would go unnoticed until something is written; whenGone
// reads ahead in that time. What it read is given to the next reader.
//
// Its methods are called by one goroutine at a time, as fasthttp does.
type conn struct {
	net.Conn
	ahead []byte
	eof   atomic.Bool // a read failed: nothing more comes
	err   error
	// abandoned is called by Close while a hijack was asked for and has not
	// begun: fasthttp drops it if the connection breaks in between.
	abandoned func()
	unread    bool // part of a request was not read when it was answered
}

// Close implements net.Conn.
func (c *conn) Close() error {
	if f := c.abandoned; f != nil {
		c.abandoned = nil
		f()
	}
	if c.unread {
		c.linger()
	}
	return c.Conn.Close()
}

// lingerTime bounds how long a client that was answered early may go on
// sending its request.
const lingerTime = 5 * time.Second

// linger says that nothing more is written and forgets what the client still
// sends, until it has read that and hangs up. Closing a connection with unread
// bytes would reset it, and the reset overtake the answer.
func (c *conn) linger() {
	if half, ok := c.Conn.(interface{ CloseWrite() error }); ok && half.CloseWrite() == nil {
		_ = c.SetReadDeadline(time.Now().Add(lingerTime))
		_, _ = io.Copy(io.Discard, c.Conn)
	}
}

// Read implements net.Conn.
func (c *conn) Read(p []byte) (int, error) {
	if len(c.ahead) > 0 {
		n := copy(p, c.ahead)
		c.ahead = c.ahead[n:]
		return n, nil
	}
	if c.err != nil {
		return 0, c.err
	}
	n, err := c.Conn.Read(p)
	if err != nil {
		c.eof.Store(true)
	}
	return n, err
}

var longAgo = time.Unix(1, 0)

// aheadMax bounds how much is read ahead of a client that does not wait for its
// answers, in bytes.
const aheadMax = 64 << 10

// whenGone implements client. A client that sends more than aheadMax meanwhile
// is treated as one that left.
func (c *conn) whenGone(gone context.CancelFunc) (stop func()) {
	if c.err != nil {
		return func() {} // it is known to be gone
	}
	stopping, done := make(chan struct{}), make(chan struct{})
	var read []byte
	var err error
	go func() {
		defer close(done)
		var scratch [512]byte
		for err == nil && len(read) < aheadMax {
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

// drainUntilGone reads and forgets whatever the client of a stream still sends,
// until it leaves, and then calls gone.
func (c *conn) drainUntilGone(gone context.CancelFunc) (stop func()) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		defer gone()
		var scratch [512]byte
		for {
			if _, err := c.Conn.Read(scratch[:]); err != nil {
				return
			}
		}
	}()
	return func() {
		_ = c.SetReadDeadline(longAgo)
		<-done
	}
}

// interrupt implements client.
func (c *conn) interrupt() { _ = c.SetReadDeadline(longAgo) }

func isTimeout(err error) bool {
	ne, ok := err.(net.Error) //nolint:errorlint // what a connection returns is not wrapped
	return ok && ne.Timeout()
}

// listener makes every accepted connection a *conn.
type listener struct {
	net.Listener
	tls *tls.Config // nil for none
}

// Accept implements net.Listener.
func (l listener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	if l.tls != nil {
		c = tls.Server(c, l.tls)
	}
	return &conn{Conn: c}, nil
}

// stallWriter gives each write a deadline, so that a client that stops reading
// is cut once nothing that it missed is held for it any more.
type stallWriter struct {
	conn  net.Conn
	stall time.Duration
}

// Write implements io.Writer.
func (w stallWriter) Write(p []byte) (int, error) {
	if err := w.conn.SetWriteDeadline(time.Now().Add(w.stall)); err != nil {
		return 0, err
	}
	return w.conn.Write(p)
}
