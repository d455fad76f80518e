package conntest

import (
	"net"
	"sync"
	"syscall"
)

// Listener accepts connections in memory.
type Listener struct {
	size   int
	dialed chan net.Conn
	closed chan struct{}
	once   sync.Once
}

// Listen returns a listener. Each direction of its connections holds up to size unread bytes.
func Listen(size int) *Listener {
	return &Listener{size: size, dialed: make(chan net.Conn), closed: make(chan struct{})}
}

// Dial opens a connection. It fails with ECONNREFUSED once the listener is closed.
func (l *Listener) Dial() (net.Conn, error) { return l.DialFrom(nil) }

// DialFrom opens a connection from an address.
func (l *Listener) DialFrom(remote net.Addr) (net.Conn, error) {
	client, server := Pipe(l.size)
	server.Remote = remote
	select {
	case l.dialed <- server:
		return client, nil
	case <-l.closed:
		return nil, syscall.ECONNREFUSED
	}
}

// Accept implements net.Listener.
func (l *Listener) Accept() (net.Conn, error) {
	select {
	case c := <-l.dialed:
		return c, nil
	case <-l.closed:
		return nil, net.ErrClosed
	}
}

// Close implements net.Listener.
func (l *Listener) Close() error {
	l.once.Do(func() { close(l.closed) })
	return nil
}

// Addr implements net.Listener.
func (*Listener) Addr() net.Addr { return &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)} }
