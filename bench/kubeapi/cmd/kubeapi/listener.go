package main

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"strconv"
	"sync"
	"syscall"
)

// listener is the apiserver's listening socket. It keeps track of its connections, so that a
// shutdown can cut the connections of watches. The apiserver itself would wait a minute for them.
type listener struct {
	*net.TCPListener

	mu struct {
		sync.Mutex
		conns map[*conn]struct{}
	}
}

// listenLoopback listens on address, whose host must be a loopback address or "localhost".
func listenLoopback(address string) (*listener, error) {
	host, portText, err := net.SplitHostPort(address)
	if err != nil {
		return nil, fmt.Errorf("--listen %q is not host:port", address)
	}
	if host == "localhost" {
		host = "127.0.0.1"
	}
	port, err := strconv.ParseUint(portText, 10, 16)
	if err != nil {
		return nil, fmt.Errorf("--listen %q: the port is not a number from 0 to 65535", address)
	}
	ip, err := netip.ParseAddr(host)
	if err != nil || !ip.IsLoopback() {
		return nil, fmt.Errorf("--listen %q is not a loopback address: kubeapi is a test server and serves no network", address)
	}

	var tcp *net.TCPListener
	if port == 0 {
		tcp, err = listenFreePort(ip)
	} else {
		tcp, err = listenPort(ip, uint16(port))
	}
	if err != nil {
		return nil, fmt.Errorf("cannot listen: %w", err)
	}
	ln := &listener{TCPListener: tcp}
	ln.mu.conns = make(map[*conn]struct{})
	return ln, nil
}

func listenPort(ip netip.Addr, port uint16) (*net.TCPListener, error) {
	return net.ListenTCP("tcp", net.TCPAddrFromAddrPort(netip.AddrPortFrom(ip, port)))
}

// listenFreePort chooses a port below those that Linux uses for outgoing connections (32768 and
// above). So other processes do not take the port by accident while the server is down, and a
// restart on the same port succeeds.
func listenFreePort(ip netip.Addr) (*net.TCPListener, error) {
	const first, end, tries = 20000, 32768, 100
	for range tries {
		ln, err := listenPort(ip, uint16(first+rand.IntN(end-first)))
		if err == nil || !errors.Is(err, syscall.EADDRINUSE) {
			return ln, err
		}
	}
	return nil, fmt.Errorf("no free port on %s after %d tries in [%d, %d)", ip, tries, first, end)
}

func (l *listener) ip() net.IP { return l.Addr().(*net.TCPAddr).IP }

func (l *listener) url() string { return "https://" + l.Addr().String() }

// Accept implements net.Listener.
func (l *listener) Accept() (net.Conn, error) {
	tcp, err := l.AcceptTCP()
	if err != nil {
		return nil, err
	}
	c := &conn{TCPConn: tcp, listener: l}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.mu.conns[c] = struct{}{}
	return c, nil
}

// cut closes all open connections.
func (l *listener) cut() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for c := range l.mu.conns {
		c.TCPConn.Close()
	}
}

// conn is an accepted connection. When it is closed, it is removed from its listener.
type conn struct {
	*net.TCPConn
	listener *listener
}

// Close implements net.Conn.
func (c *conn) Close() error {
	c.listener.mu.Lock()
	delete(c.listener.mu.conns, c)
	c.listener.mu.Unlock()
	return c.TCPConn.Close()
}
