package admin

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"sync"
	"time"
)

// secure returns a listener whose connections speak TLS or plain HTTP, as their first byte shows.
// So the kubelet's probes need no credentials and no second port. It takes ownership of inner.
func secure(inner net.Listener, config *tls.Config) net.Listener {
	l := &eitherListener{Listener: inner, config: withoutHTTP2(config), found: make(chan accepted)}
	l.ctx, l.cancel = context.WithCancel(context.Background())
	l.running.Go(l.run)
	return l
}

// withoutHTTP2 offers only HTTP/1.1. So the number of connections limits the number of requests.
func withoutHTTP2(config *tls.Config) *tls.Config {
	outer := config.Clone()
	outer.NextProtos = []string{"http/1.1"}
	if inner := config.GetConfigForClient; inner != nil {
		outer.GetConfigForClient = func(hello *tls.ClientHelloInfo) (*tls.Config, error) {
			c, err := inner(hello)
			if c == nil || err != nil {
				return c, err
			}
			return withoutHTTP2(c), nil
		}
	}
	return outer
}

type eitherListener struct {
	net.Listener
	config  *tls.Config
	found   chan accepted
	ctx     context.Context // ends with Close
	cancel  context.CancelFunc
	running sync.WaitGroup
}

type accepted struct {
	conn net.Conn
	err  error
}

// run accepts connections. A new goroutine for each connection waits for the first byte.
func (l *eitherListener) run() {
	for {
		conn, err := l.Listener.Accept()
		if err == nil {
			l.running.Go(func() { l.detect(conn) })
			continue
		}
		if !l.deliver(accepted{err: err}) || errors.Is(err, net.ErrClosed) {
			return
		}
	}
}

func (l *eitherListener) detect(conn net.Conn) {
	stop := context.AfterFunc(l.ctx, func() { _ = conn.Close() })
	defer stop()
	first := make([]byte, 1)
	// If this fails, the read fails too.
	_ = conn.SetReadDeadline(time.Now().Add(adminHeaderTimeout))
	if _, err := conn.Read(first); err != nil {
		_ = conn.Close()
		return
	}
	_ = conn.SetReadDeadline(time.Time{})
	var peeked net.Conn = &peekedConn{Conn: conn, first: first}
	const handshake = 0x16 // type of a TLS record with a ClientHello
	if first[0] == handshake {
		peeked = tls.Server(peeked, l.config)
	}
	if !l.deliver(accepted{conn: peeked}) {
		_ = conn.Close()
	}
}

func (l *eitherListener) deliver(a accepted) bool {
	select {
	case l.found <- a:
		return true
	case <-l.ctx.Done():
		return false
	}
}

func (l *eitherListener) Accept() (net.Conn, error) {
	select {
	case a := <-l.found:
		return a.conn, a.err
	case <-l.ctx.Done():
		return nil, net.ErrClosed
	}
}

// Close implements net.Listener. It also closes connections that have not sent a byte yet.
func (l *eitherListener) Close() error {
	l.cancel()
	err := l.Listener.Close()
	l.running.Wait()
	return err
}

type peekedConn struct {
	net.Conn
	first []byte
}

func (c *peekedConn) Read(p []byte) (int, error) {
	if len(c.first) == 0 || len(p) == 0 {
		return c.Conn.Read(p)
	}
	n := copy(p, c.first)
	c.first = c.first[n:]
	return n, nil
}
