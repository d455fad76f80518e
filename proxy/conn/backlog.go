package conn

import (
	"net"
	"syscall"
	"time"
)

// kernelListener is a listener with a backlog in the kernel: connections that clients have opened
// but that have not been accepted yet.
type kernelListener interface {
	net.Listener
	syscall.Conn
	SetDeadline(t time.Time) error
}

// Drain makes Accept fail once no client can be left without an answer. Closing a listening socket
// resets the connections in its backlog, although their clients regard them as open. So the
// listener first stops new clients (see refuseNew), and Accept returns the connections whose
// handshake ends within the time handshake. Then it closes the listener.
//
// If the kernel cannot stop new clients, Accept closes the listener as soon as its backlog is empty.
func (l *Listener) Drain(handshake time.Duration) error {
	k, ok := l.Listener.(kernelListener)
	if !ok {
		return l.Close()
	}
	raw, err := k.SyscallConn()
	if err != nil {
		return l.Close()
	}
	until := longAgo
	_ = raw.Control(func(fd uintptr) {
		if refuseNew(int(fd)) == nil {
			until = time.Now().Add(handshake)
		}
	})
	return k.SetDeadline(until)
}

// acceptLast accepts a connection from the backlog, where Accept does not look after the deadline.
// If the backlog is empty, acceptLast closes the listener and returns err.
func (l *Listener) acceptLast(err error) (c net.Conn, _ error) {
	if k, ok := l.Listener.(kernelListener); ok {
		if raw, err := k.SyscallConn(); err == nil {
			_ = raw.Control(func(fd uintptr) { c, _ = acceptNow(int(fd)) })
		}
	}
	if c != nil {
		return c, nil
	}
	_ = l.Close()
	return nil, err
}
