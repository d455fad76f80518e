package admin

import (
	"context"
	"crypto/tls"
	"net"
	"slices"
	"sync"

	"github.com/watchproxy/watchproxy/proxy/access"
)

const connections = 32

type boundedListener struct {
	net.Listener
	mu struct {
		sync.Mutex
		open []*boundedConn // oldest first
	}
}

// bounded limits the open connections: beyond the limit, the oldest one of the client address with
// the most is closed. Otherwise a few silent clients, or one that opens connections fast, could
// block the kubelet's probes, and the kubelet would end the proxy. Accept is for one goroutine.
func bounded(inner net.Listener) net.Listener {
	return &boundedListener{Listener: inner}
}

func (l *boundedListener) Accept() (net.Conn, error) {
	conn, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	c := &boundedConn{Conn: conn, listener: l, client: access.Network(conn.RemoteAddr().String())}
	c.ctx, c.cancel = context.WithCancel(context.Background())
	if oldest := l.add(c); oldest != nil {
		_ = oldest.Close() // the client may have closed it
	}
	return c, nil
}

// add adds a connection. If there are too many, it returns the connection to close.
func (l *boundedListener) add(c *boundedConn) (oldest *boundedConn) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.mu.open = append(l.mu.open, c)
	if len(l.mu.open) <= connections {
		return nil
	}
	count := map[string]int{}
	for _, c := range l.mu.open {
		count[c.client]++
	}
	byCount := func(a, b *boundedConn) int { return count[a.client] - count[b.client] }
	return slices.MaxFunc(l.mu.open, byCount)
}

type boundedConn struct {
	net.Conn
	listener *boundedListener
	client   string          // the client's address
	ctx      context.Context // ends with Close
	cancel   context.CancelFunc
}

// untilClosed returns a context that ends when a connection of a boundedListener is closed. The
// server itself does not notice that while it has a part of the next request.
func untilClosed(ctx context.Context, conn net.Conn) context.Context {
	if secure, ok := conn.(*tls.Conn); ok {
		conn = secure.NetConn()
	}
	if peeked, ok := conn.(*peekedConn); ok {
		conn = peeked.Conn
	}
	if c, ok := conn.(*boundedConn); ok {
		var cancel context.CancelFunc
		ctx, cancel = context.WithCancel(ctx)
		context.AfterFunc(c.ctx, cancel)
	}
	return ctx
}

// Close ends the context last, so that the handler writes no error to an open connection.
func (c *boundedConn) Close() error {
	mu := &c.listener.mu
	mu.Lock()
	mu.open = slices.DeleteFunc(mu.open, func(o *boundedConn) bool { return o == c })
	mu.Unlock()
	defer c.cancel()
	return c.Conn.Close()
}
