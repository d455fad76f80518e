package admin

import (
	"cmp"
	"context"
	"crypto/tls"
	"maps"
	"net"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/watchproxy/watchproxy/proxy/access"
)

// connections limits the open connections of the admin address.
const connections = 32

// boundedListener accepts a limited number of connections, see [Bounded].
type boundedListener struct {
	net.Listener
	signs atomic.Int64 // reads and writes of all connections; they order the connections
	mu    struct {
		sync.Mutex
		open map[*boundedConn]struct{}
	}
}

// Bounded returns a listener with at most 32 open connections. If there are more, a connection of
// the client address with the most connections is closed, the one that has been silent for the
// longest time. Otherwise a few clients that send nothing, or a client that opens connections as
// fast as it can, could block the kubelet's probes, and the kubelet would end the proxy.
func Bounded(inner net.Listener) net.Listener {
	l := &boundedListener{Listener: inner}
	l.mu.open = map[*boundedConn]struct{}{}
	return l
}

// Accept implements net.Listener.
func (l *boundedListener) Accept() (net.Conn, error) {
	conn, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	c := &boundedConn{Conn: conn, among: l, client: access.Network(conn.RemoteAddr().String())}
	c.ctx, c.cancel = context.WithCancel(context.Background())
	c.heard()
	if silent := l.add(c); silent != nil {
		_ = silent.Close() // the client may have closed it
	}
	return c, nil
}

// add adds a connection. If there are too many, it returns the connection to close.
func (l *boundedListener) add(c *boundedConn) (silent *boundedConn) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.mu.open[c] = struct{}{}
	if len(l.mu.open) <= connections {
		return nil
	}
	of := map[string]int{}
	for c := range l.mu.open {
		of[c.client]++
	}
	silent = slices.MinFunc(slices.Collect(maps.Keys(l.mu.open)), func(a, b *boundedConn) int {
		return cmp.Or(cmp.Compare(of[b.client], of[a.client]), cmp.Compare(a.last.Load(), b.last.Load()))
	})
	delete(l.mu.open, silent)
	return silent
}

// boundedConn is a connection of a boundedListener.
type boundedConn struct {
	net.Conn
	among  *boundedListener
	client string          // the client's address
	last   atomic.Int64    // number of the last read or write
	ctx    context.Context // ends with Close
	cancel context.CancelFunc
}

// untilClosed returns a context that ends when a connection of a boundedListener is closed. The
// server itself does not notice that while it has a part of the next request.
func untilClosed(ctx context.Context, conn net.Conn) context.Context {
	if secure, ok := conn.(*tls.Conn); ok {
		conn = secure.NetConn()
	}
	if begun, ok := conn.(*begunConn); ok {
		conn = begun.Conn
	}
	if c, ok := conn.(*boundedConn); ok {
		var cancel context.CancelFunc
		ctx, cancel = context.WithCancel(ctx)
		context.AfterFunc(c.ctx, cancel)
	}
	return ctx
}

func (c *boundedConn) heard() { c.last.Store(c.among.signs.Add(1)) }

// Read implements net.Conn.
func (c *boundedConn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	c.heard()
	return n, err
}

// Write implements net.Conn.
func (c *boundedConn) Write(p []byte) (int, error) {
	n, err := c.Conn.Write(p)
	c.heard()
	return n, err
}

// Close implements net.Conn.
func (c *boundedConn) Close() error {
	c.among.mu.Lock()
	delete(c.among.mu.open, c)
	c.among.mu.Unlock()
	c.cancel()
	return c.Conn.Close()
}
