package proxy

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"net"
	"net/http"
	"net/url"
	"os"
	"syscall"
	"time"

	"k8s.io/client-go/transport"
)

// laneConn is a connection. One goroutine at a time uses it.
type laneConn struct {
	net.Conn
	quiet  func() bool // tells that the server has neither sent anything nor hung up
	below  *tap        // TLS; nil without
	in     *bufio.Reader
	out    *bufio.Writer
	header int  // how much of an answer's header may still come, in bytes; -1 if it has come
	list   bool // what it has to do is one; known to lanes
	opened time.Time
	used   time.Time // when it was last; zero if it was not
	until  time.Time // the deadline, zero for none
}

// laneKeepAlive finds out within 45 s that the server is gone.
var laneKeepAlive = net.KeepAliveConfig{Enable: true, Idle: 15 * time.Second, Interval: 10 * time.Second, Count: 3}

// dialLane connects to a server. The files that a configuration names are read anew.
func dialLane(ctx context.Context, made *transport.Config, base *url.URL) (net.Conn, error) {
	fresh := *made
	port := base.Port()
	if port == "" {
		port = base.Scheme
	}
	dialer := net.Dialer{KeepAliveConfig: laneKeepAlive}
	conn, err := dialer.DialContext(ctx, "tcp", net.JoinHostPort(base.Hostname(), port))
	if err != nil || base.Scheme != "https" {
		return conn, err
	}
	fresh.TLS.NextProtos = []string{"http/1.1"}
	config, err := transport.TLSConfigFor(&fresh)
	if err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	if config.ServerName == "" {
		config.ServerName = base.Hostname()
	}
	secured := tls.Client(&tap{Conn: conn}, config)
	if err := secured.HandshakeContext(ctx); err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	return secured, nil
}

// tap is the connection below TLS. With it shut, TLS shows what it has read already.
type tap struct {
	net.Conn
	shut bool
}

// Read implements net.Conn.
func (t *tap) Read(p []byte) (int, error) {
	if t.shut {
		return 0, os.ErrDeadlineExceeded
	}
	return t.Conn.Read(p)
}

// newLaneConn makes one of a connection, which if it is one of TLS has a tap.
func newLaneConn(conn net.Conn) *laneConn {
	c := &laneConn{Conn: conn, out: bufio.NewWriterSize(conn, 4<<10), opened: time.Now()}
	c.in = bufio.NewReaderSize(arriving{c}, 16<<10)
	if secured, ok := conn.(*tls.Conn); ok {
		c.below = secured.NetConn().(*tap)
		conn = c.below.Conn
	}
	c.quiet = listening(conn)
	return c
}

// listening returns a function that tells whether nothing has come by a connection, not even its end. Where that cannot be
// told, it is never so.
func listening(conn net.Conn) (quiet func() bool) {
	file, ok := conn.(syscall.Conn)
	if !ok {
		return func() bool { return false }
	}
	raw, err := file.SyscallConn()
	if err != nil {
		return func() bool { return false }
	}
	var nothing bool
	look := func(fd uintptr) (done bool) {
		var one [1]byte
		_, _, err := syscall.Recvfrom(int(fd), one[:], syscall.MSG_PEEK|syscall.MSG_DONTWAIT)
		nothing = errors.Is(err, syscall.EAGAIN)
		return true
	}
	return func() bool { return raw.Read(look) == nil && nothing }
}

func (c *laneConn) worn(now time.Time) bool {
	if now.Sub(c.opened) > laneAge {
		return true
	}
	if c.used.IsZero() {
		return now.Sub(c.opened) > laneNew
	}
	return now.Sub(c.used) > laneRest
}

// stale tells whether a connection cannot be used any more. What comes unasked would be taken for the answer to what
// is asked next: it may wait in the socket, in TLS and in the reader. Before the first is asked, TLS has to say something.
func (c *laneConn) stale() bool {
	if c.used.IsZero() {
		return false
	}
	if c.in.Buffered() > 0 || !c.wait() || !c.quiet() {
		return true
	}
	if c.below == nil {
		return false
	}
	c.below.shut = true
	defer func() { c.below.shut = false }()
	var one [1]byte
	_, err := c.Read(one[:])
	return !errors.Is(err, os.ErrDeadlineExceeded)
}

var errLane = errors.New("the answer is of another kind than one to a get")

// ask writes a request and reads an answer's header.
func (c *laneConn) ask(req *http.Request) (*http.Response, error) {
	if !c.wait() {
		return nil, net.ErrClosed
	}
	if err := req.Write(c.out); err != nil {
		return nil, err
	}
	if err := c.out.Flush(); err != nil {
		return nil, err
	}
	c.header = laneHeader
	resp, err := http.ReadResponse(c.in, req)
	if err != nil {
		return nil, err
	}
	c.header = -1
	if resp.StatusCode < http.StatusOK || resp.StatusCode == http.StatusRequestTimeout {
		return nil, errLane // the latter is said to a connection that nobody has asked by
	}
	return resp, nil
}

// wait sees to it that the server has a while to answer, laneSilence or half as much again: it wakes a thread to set a
// deadline, which is good for several requests. It is false if the connection is closed.
func (c *laneConn) wait() bool {
	if time.Until(c.until) >= laneSilence {
		return true
	}
	c.until = time.Now().Add(laneSilence * 3 / 2)
	return c.SetDeadline(c.until) == nil
}

// waitOn lets the server take as long as it likes.
func (c *laneConn) waitOn() bool {
	if c.until.IsZero() {
		return true
	}
	c.until = time.Time{}
	return c.SetDeadline(c.until) == nil
}

// arriving is what a server sends. A header is bounded; a body may take as long as it likes.
type arriving struct{ by *laneConn }

// Read implements io.Reader.
func (a arriving) Read(p []byte) (int, error) {
	c := a.by
	switch {
	case c.header == 0:
		return 0, errLane
	case c.header > 0:
		p = p[:min(len(p), c.header)]
		n, err := c.Read(p)
		c.header -= n
		return n, err
	case !c.waitOn():
		return 0, net.ErrClosed
	}
	return c.Read(p)
}
