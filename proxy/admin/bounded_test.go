package admin

import (
	"crypto/tls"
	"fmt"
	"net"
	"net/netip"
	"testing"
	"testing/synctest"
)

// caller is a connection from an address, which only counts.
type caller struct {
	net.Conn
	address string
	closed  bool
	closing func() // called by Close, if set
}

// RemoteAddr implements net.Conn.
func (c *caller) RemoteAddr() net.Addr {
	return net.TCPAddrFromAddrPort(netip.MustParseAddrPort(c.address))
}

// Close implements net.Conn.
func (c *caller) Close() error {
	c.closed = true
	if c.closing != nil {
		c.closing()
	}
	return nil
}

// callers is a listener of given connections.
type callers struct {
	net.Listener
	next *caller
}

// Accept implements net.Listener.
func (l *callers) Accept() (net.Conn, error) { return l.next, nil }

// A crowd of connections from another address is closed before a client's connection. From the same
// address, the oldest connections are closed.
func TestBoundedClosesTheCrowd(t *testing.T) {
	for name, test := range map[string]struct {
		address string // of the crowd
		closed  bool
	}{
		"elsewhere":   {"192.0.2.2", false},
		"same client": {"192.0.2.1", true},
	} {
		var inner callers
		l := bounded(&inner)
		open := func(address string, port int) *caller {
			inner.next = &caller{address: fmt.Sprintf("%s:%d", address, port)}
			if _, err := l.Accept(); err != nil {
				t.Fatal(err)
			}
			return inner.next
		}
		client := open("192.0.2.1", 1)
		all := []*caller{client}
		for i := range 3 * connections {
			all = append(all, open(test.address, 2+i))
		}
		left := 0
		for _, c := range all {
			if !c.closed {
				left++
			}
		}
		if client.closed != test.closed || left != connections {
			t.Errorf("%s: the client's connection is closed: %t; %d are open, want %d", name, client.closed, left, connections)
		}
	}
}

// The context of a request ends with its connection, whatever is around the connection, and not
// before: a client whose connection was closed for others could get a 500.
func TestUntilClosed(t *testing.T) {
	for name, around := range map[string]func(net.Conn) net.Conn{
		"plain":        func(c net.Conn) net.Conn { return c },
		"either, HTTP": func(c net.Conn) net.Conn { return &peekedConn{Conn: c} },
		"either, TLS": func(c net.Conn) net.Conn {
			return tls.Server(&peekedConn{Conn: c}, &tls.Config{MinVersion: tls.VersionTLS12})
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				inner := &caller{address: "192.0.2.1:1"}
				conn, err := bounded(&callers{next: inner}).Accept()
				if err != nil {
					t.Fatal(err)
				}
				ctx := untilClosed(t.Context(), around(conn))
				inner.closing = func() {
					synctest.Wait()
					if ctx.Err() != nil {
						t.Error("the context has ended before the connection")
					}
				}
				if err := conn.Close(); err != nil {
					t.Error(err)
				}
				<-ctx.Done()
			})
		})
	}
}
