package proxy

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"runtime"
	"strings"
	"sync"
	"time"
)

// rawConn is the server's side of a connection whose client has sent all its bytes. After the last
// byte the client has left. CancelWhenGone reads while the proxy responds, to notice a client that
// leaves. These reads do not see the end, unless the response is a watch: they wait until they are
// stopped. rawConn recognises them by the name CancelWhenGone on the stack, so that nothing depends on
// timing.
type rawConn struct {
	piece  int           // maximum number of bytes of one Read; 0 means no limit
	closed chan struct{} // closed by Close
	mu     struct {
		sync.Mutex
		unread   []byte
		written  []byte
		expired  bool
		isClosed bool
		left     bool // a watch has begun
		wake     *sync.Cond
	}
}

func newRawConn(raw []byte, piece int) *rawConn {
	c := &rawConn{piece: piece, closed: make(chan struct{})}
	c.mu.unread = raw
	c.mu.wake = sync.NewCond(&c.mu)
	return c
}

// Read implements net.Conn.
func (c *rawConn) Read(p []byte) (int, error) {
	patient := calledBy("CancelWhenGone")
	c.mu.Lock()
	defer c.mu.Unlock()
	for {
		switch {
		case c.mu.isClosed:
			return 0, net.ErrClosed
		case c.mu.expired:
			return 0, os.ErrDeadlineExceeded
		case len(p) == 0:
			return 0, nil
		case len(c.mu.unread) > 0:
			if c.piece > 0 && len(p) > c.piece {
				p = p[:c.piece]
			}
			n := copy(p, c.mu.unread)
			c.mu.unread = c.mu.unread[n:]
			return n, nil
		case !patient || c.mu.left:
			return 0, io.EOF
		}
		c.mu.wake.Wait()
	}
}

// calledBy reports whether a function whose name contains the given one is on the stack.
func calledBy(name string) bool {
	var pcs [16]uintptr
	frames := runtime.CallersFrames(pcs[:runtime.Callers(2, pcs[:])])
	for {
		frame, more := frames.Next()
		if strings.Contains(frame.Function, name) {
			return true
		}
		if !more {
			return false
		}
	}
}

// leave ends the wait for the end of a watch.
func (c *rawConn) leave() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.mu.left = true
	c.mu.wake.Broadcast()
}

// Write implements net.Conn.
func (c *rawConn) Write(p []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.mu.isClosed {
		return 0, net.ErrClosed
	}
	c.mu.written = append(c.mu.written, p...)
	return len(p), nil
}

// answers returns all written bytes.
func (c *rawConn) answers() []byte {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.mu.written
}

// Close implements net.Conn.
func (c *rawConn) Close() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.mu.isClosed {
		return net.ErrClosed
	}
	c.mu.isClosed = true
	c.mu.wake.Broadcast()
	close(c.closed)
	return nil
}

// CloseWrite exists because TCP connections have it.
func (c *rawConn) CloseWrite() error { return nil }

// SetReadDeadline implements net.Conn. A deadline in the future never passes.
func (c *rawConn) SetReadDeadline(at time.Time) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.mu.expired = !at.IsZero() && at.Before(time.Now())
	c.mu.wake.Broadcast()
	return nil
}

// SetDeadline implements net.Conn.
func (c *rawConn) SetDeadline(at time.Time) error { return c.SetReadDeadline(at) }

// SetWriteDeadline implements net.Conn.
func (c *rawConn) SetWriteDeadline(time.Time) error { return nil }

// LocalAddr implements net.Conn.
func (c *rawConn) LocalAddr() net.Addr { return &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 8001} }

// RemoteAddr implements net.Conn.
func (c *rawConn) RemoteAddr() net.Addr { return &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 2} }

// rawListener accepts given connections.
type rawListener struct {
	conns chan net.Conn
	ended chan struct{}
	once  sync.Once
}

func newRawListener() *rawListener {
	return &rawListener{conns: make(chan net.Conn), ended: make(chan struct{})}
}

// Accept implements net.Listener.
func (l *rawListener) Accept() (net.Conn, error) {
	select {
	case c := <-l.conns:
		return c, nil
	case <-l.ended:
		return nil, net.ErrClosed
	}
}

// Close implements net.Listener.
func (l *rawListener) Close() error {
	l.once.Do(func() { close(l.ended) })
	return nil
}

// Addr implements net.Listener.
func (l *rawListener) Addr() net.Addr { return &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 8001} }

// String returns the address that clients connect to.
func (l *rawListener) String() string { return l.Addr().String() }

// dial connects a client by a pipe. The pipe breaks after an hour, so that no bubble hangs forever.
func (l *rawListener) dial(context.Context, string, string) (net.Conn, error) {
	client, server := net.Pipe()
	_ = client.SetDeadline(time.Now().Add(time.Hour))
	select {
	case l.conns <- server:
		return &pipe{client}, nil
	case <-l.ended:
		return nil, net.ErrClosed
	}
}

// pipe is the client's end of a pipe. A pipe cannot be closed by half.
type pipe struct{ net.Conn }

// CloseWrite exists because TCP connections have it.
func (p *pipe) CloseWrite() error { return p.Close() }

var errHung = errors.New("the connection is still open")

// serve passes a connection to the listener's server and waits until it is closed.
func (l *rawListener) serve(c *rawConn) error {
	timer := time.NewTimer(testWait)
	defer timer.Stop()
	select {
	case l.conns <- c:
	case <-timer.C:
		return errHung
	}
	select {
	case <-c.closed:
		return nil
	case <-timer.C:
		return errHung
	}
}
