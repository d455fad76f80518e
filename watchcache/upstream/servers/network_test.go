package servers

import (
	"errors"
	"net"
	"sync"
	"time"
)

// listener is a net.Listener in memory, so that its servers can run in synctest's time.
type listener struct {
	accepted chan net.Conn
	closed   chan struct{}
	close    func()
}

func newListener() *listener {
	l := &listener{accepted: make(chan net.Conn), closed: make(chan struct{})}
	l.close = sync.OnceFunc(func() { close(l.closed) })
	return l
}

// dial opens a connection. It fails if the listener is closed.
func (l *listener) dial() (net.Conn, error) {
	near, far := connect()
	select {
	case l.accepted <- far:
		return near, nil
	case <-l.closed:
		return nil, &net.OpError{Op: "dial", Net: "memory", Err: errors.New("connection refused")}
	}
}

// Accept implements net.Listener.
func (l *listener) Accept() (net.Conn, error) {
	select {
	case c := <-l.accepted:
		return c, nil
	case <-l.closed:
		return nil, net.ErrClosed
	}
}

// Close implements net.Listener.
func (l *listener) Close() error {
	l.close()
	return nil
}

// Addr implements net.Listener.
func (l *listener) Addr() net.Addr { return &net.UnixAddr{Name: "memory"} }

// duplexConn has a pipe for each direction. So, unlike a net.Pipe, it can be closed for writing
// alone.
type duplexConn struct {
	net.Conn // for reading
	out      net.Conn
}

func connect() (near, far net.Conn) {
	a, b := net.Pipe()
	c, d := net.Pipe()
	return &duplexConn{a, c}, &duplexConn{d, b}
}

// Write implements net.Conn.
func (c *duplexConn) Write(p []byte) (int, error) { return c.out.Write(p) }

// CloseWrite ends what the peer reads.
func (c *duplexConn) CloseWrite() error { return c.out.Close() }

// Close implements net.Conn.
func (c *duplexConn) Close() error { return errors.Join(c.Conn.Close(), c.out.Close()) }

// SetWriteDeadline implements net.Conn.
func (c *duplexConn) SetWriteDeadline(at time.Time) error { return c.out.SetWriteDeadline(at) }

// SetDeadline implements net.Conn.
func (c *duplexConn) SetDeadline(at time.Time) error {
	return errors.Join(c.SetReadDeadline(at), c.out.SetWriteDeadline(at))
}
