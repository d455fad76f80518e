package proxy

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"io"
	"math"
	"net"
	"net/http"
	"net/url"
	"slices"
	"sync"
	"syscall"
	"time"

	"golang.org/x/net/http/httpguts"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/transport"
)

const (
	// laneMost is how many connections lanes have at most.
	laneMost = 8
	// laneRest is how long one is kept without work. Kube-apiserver keeps it for 90 s.
	laneRest = time.Minute
	// laneAge is how long one is used at all: servers, their authorities and our certificates change.
	laneAge = 5 * time.Minute
	// laneDemand is within which time two requests have to want one, so that it is opened.
	laneDemand = time.Second
	// lanePause is how long none is opened after one could not be.
	lanePause = 10 * time.Second
	// laneDial bounds the opening of one.
	laneDial = 10 * time.Second
	// laneSilence is how long an answer may not begin, after which it is asked for anew by another way; and
	// how long nothing of it may come when it has begun. The half of it may be added.
	laneSilence = 10 * time.Second
	// laneHeader bounds the header of an answer, in bytes.
	laneHeader = 1 << 20
)

// lanes are a way upstream for gets of single objects: over an HTTP/1.1 connection that has nothing else to do, written
// and read by who asks. Net/http gives both to goroutines of the connection, over HTTP/2 the request to one more; each
// handing over wakes a thread, which takes longer than what it then does.
//
// As a get may be sent twice, whatever goes wrong before its answer has begun is left to the other way, which has all
// that is not a get, too.
type lanes struct {
	otherwise http.RoundTripper
	base      *url.URL
	dial      func(context.Context) (net.Conn, error)

	mu struct {
		sync.Mutex
		idle    []*laneConn // the one that was used last is the last
		open    int
		opening bool
		wanted  time.Time // when there was none
		failed  time.Time // when one failed
		closing bool      // a timer is set that closes those without work
	}
}

// laneConn is a connection. One goroutine at a time uses it.
type laneConn struct {
	net.Conn
	quiet  func() bool // tells that the server has neither sent anything nor hung up
	in     *bufio.Reader
	out    *bufio.Writer
	header io.LimitedReader // below in
	opened time.Time
	used   time.Time // when it was last; zero if it was not
	until  time.Time // the deadline
}

// oneObject marks the context of a request for a single object.
type oneObject struct{}

// getsOneObject tells requests that lanes are for.
func (r *request) getsOneObject(rt route) bool {
	return r.method == http.MethodGet && rt.verb == "get" && rt.resource && rt.plain && rt.name != "" && rt.subresource == "" &&
		r.body == nil && !r.wantsUpgrade()
}

// withLanes makes a configuration one for a transport with lanes to its server, as a copy. A server behind a
// proxy has none.
func withLanes(config *rest.Config) *rest.Config {
	config = rest.CopyConfig(config)
	base, _, err := rest.DefaultServerUrlFor(config)
	if err != nil {
		return config // the transport will say so
	}
	proxied := config.Proxy
	if proxied == nil {
		proxied = http.ProxyFromEnvironment
	}
	if by, err := proxied(&http.Request{URL: base}); by != nil || err != nil {
		return config
	}
	made, err := config.TransportConfig()
	if err != nil {
		return config
	}
	config.Wrap(func(otherwise http.RoundTripper) http.RoundTripper {
		return &lanes{otherwise: otherwise, base: base, dial: func(ctx context.Context) (net.Conn, error) { return dialLane(ctx, made, base) }}
	})
	return config
}

// dialLane connects to a server. The files that a configuration names are read anew.
func dialLane(ctx context.Context, made *transport.Config, base *url.URL) (net.Conn, error) {
	fresh := *made
	port := base.Port()
	if port == "" {
		port = base.Scheme
	}
	dial := (&net.Dialer{KeepAlive: 30 * time.Second}).DialContext
	if fresh.DialHolder != nil {
		dial = fresh.DialHolder.Dial
	}
	conn, err := dial(ctx, "tcp", net.JoinHostPort(base.Hostname(), port))
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
	secured := tls.Client(conn, config)
	if err := secured.HandshakeContext(ctx); err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	return secured, nil
}

// RoundTrip implements http.RoundTripper.
func (l *lanes) RoundTrip(req *http.Request) (*http.Response, error) {
	if req.Context().Value(oneObject{}) != nil && req.URL.Host == l.base.Host && writable(req.Header) {
		if c := l.take(); c != nil {
			resp, err := l.exchange(c, req)
			if err == nil || req.Context().Err() != nil {
				return resp, err
			}
			l.pause()
		}
	}
	return l.otherwise.RoundTrip(req)
}

// writable tells whether a header can be written as it is.
func writable(header http.Header) bool {
	for name, values := range header {
		if !httpguts.ValidHeaderFieldName(name) {
			return false
		}
		for _, v := range values {
			if !httpguts.ValidHeaderFieldValue(v) {
				return false
			}
		}
	}
	return true
}

// take returns a connection without work. If there is none, it sees to it that there will be.
func (l *lanes) take() *laneConn {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := time.Now()
	for n := len(l.mu.idle); n > 0; n = len(l.mu.idle) {
		c := l.mu.idle[n-1]
		l.mu.idle = l.mu.idle[:n-1]
		if !c.worn(now) && c.extend() == nil && !c.stale() {
			return c
		}
		l.closeLocked(c)
	}
	wanted := l.mu.wanted
	l.mu.wanted = now
	if now.Sub(wanted) < laneDemand && !l.mu.opening && l.mu.open < laneMost && now.Sub(l.mu.failed) > lanePause {
		l.mu.opening = true
		l.mu.open++
		go l.openOne(now)
	}
	return nil
}

func (c *laneConn) worn(now time.Time) bool {
	last := c.used
	if last.IsZero() {
		last = c.opened
	}
	return now.Sub(last) > laneRest || now.Sub(c.opened) > laneAge
}

// stale tells whether a connection cannot be used any more. What comes unasked would be taken for the answer to what
// is asked next; before that first is asked, TLS has to say something, though.
func (c *laneConn) stale() bool { return c.in.Buffered() > 0 || !c.used.IsZero() && !c.quiet() }

// openOne opens a connection, which was wanted at a time.
func (l *lanes) openOne(wanted time.Time) {
	ctx, cancel := context.WithTimeout(context.Background(), laneDial)
	defer cancel()
	conn, err := l.dial(ctx)
	l.mu.Lock()
	defer l.mu.Unlock()
	l.mu.opening = false
	switch {
	case err != nil:
		l.mu.open--
		l.mu.failed = time.Now()
	case l.mu.failed.After(wanted):
		l.closeLocked(newLaneConn(conn))
	default:
		l.giveLocked(newLaneConn(conn))
	}
}

func newLaneConn(conn net.Conn) *laneConn {
	c := &laneConn{Conn: conn, quiet: listening(conn), out: bufio.NewWriterSize(conn, 4<<10), opened: time.Now()}
	c.header = io.LimitedReader{R: conn}
	c.in = bufio.NewReaderSize(&c.header, 16<<10)
	return c
}

// listening returns a function that tells whether nothing has come by a connection, not even its end. Where that cannot be
// told, it is never so.
func listening(conn net.Conn) (quiet func() bool) {
	if secured, ok := conn.(*tls.Conn); ok {
		conn = secured.NetConn()
	}
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

// give takes a connection back that has no work any more.
func (l *lanes) give(c *laneConn) {
	l.mu.Lock()
	defer l.mu.Unlock()
	c.used = time.Now()
	l.giveLocked(c)
}

func (l *lanes) giveLocked(c *laneConn) {
	l.mu.idle = append(l.mu.idle, c)
	if !l.mu.closing {
		l.mu.closing = true
		time.AfterFunc(laneRest, l.closeWorn)
	}
}

// drop closes a connection that is of no further use.
func (l *lanes) drop(c *laneConn) {
	_ = c.Close() // who was to be told has been
	l.mu.Lock()
	defer l.mu.Unlock()
	l.mu.open--
}

func (l *lanes) closeLocked(c *laneConn) {
	l.mu.open--
	_ = c.Close() // it has no work
}

// pause closes all connections without work and opens none for a while: one has failed, and so may the others.
func (l *lanes) pause() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.mu.failed = time.Now()
	l.closeIdleLocked(func(*laneConn) bool { return true })
}

// closeWorn closes connections that have had no work for long.
func (l *lanes) closeWorn() {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := time.Now()
	l.closeIdleLocked(func(c *laneConn) bool { return c.worn(now) })
	if l.mu.closing = l.mu.open > 0; l.mu.closing {
		time.AfterFunc(laneRest/2, l.closeWorn)
	}
}

func (l *lanes) closeIdleLocked(which func(*laneConn) bool) {
	l.mu.idle = slices.DeleteFunc(l.mu.idle, func(c *laneConn) bool {
		if !which(c) {
			return false
		}
		l.closeLocked(c)
		return true
	})
}

var errLane = errors.New("the answer is of another kind than one to a get")

// exchange sends a request and returns its answer. The connection is given back when the answer was read.
func (l *lanes) exchange(c *laneConn, req *http.Request) (*http.Response, error) {
	stop := context.AfterFunc(req.Context(), func() { _ = c.Close() })
	resp, err := c.ask(req)
	if err != nil {
		stop()
		l.drop(c)
		return nil, err
	}
	body := &laneBody{ReadCloser: resp.Body, lanes: l, conn: c, stop: stop, reusable: !resp.Close}
	if resp.Body == http.NoBody {
		body.ended(io.EOF)
	}
	resp.Body = body
	return resp, nil
}

// ask writes a request and reads an answer's header.
func (c *laneConn) ask(req *http.Request) (*http.Response, error) {
	if err := req.Write(c.out); err != nil {
		return nil, err
	}
	if err := c.out.Flush(); err != nil {
		return nil, err
	}
	c.header.N = laneHeader
	resp, err := http.ReadResponse(c.in, req)
	if err != nil {
		return nil, err
	}
	c.header.N = math.MaxInt64
	if resp.StatusCode < http.StatusOK || resp.StatusCode == http.StatusRequestTimeout {
		return nil, errLane // the latter is said to a connection that nobody has asked by
	}
	return resp, nil
}

// extend gives the server a while.
func (c *laneConn) extend() error {
	if time.Until(c.until) > laneSilence {
		return nil
	}
	c.until = time.Now().Add(laneSilence * 3 / 2)
	return c.SetDeadline(c.until)
}

// laneBody is an answer's body. With its end the connection is free.
type laneBody struct {
	io.ReadCloser
	lanes    *lanes
	conn     *laneConn // nil when it is given back
	stop     func() bool
	reusable bool
}

// Read implements io.Reader.
func (b *laneBody) Read(p []byte) (int, error) {
	if b.conn != nil {
		if err := b.conn.extend(); err != nil {
			return 0, err
		}
	}
	n, err := b.ReadCloser.Read(p)
	if err != nil {
		b.ended(err)
	}
	return n, err
}

// Close implements io.Closer.
func (b *laneBody) Close() error {
	b.ended(net.ErrClosed)
	return nil
}

// ended lets go of the connection.
func (b *laneBody) ended(err error) {
	c := b.conn
	if c == nil {
		return
	}
	b.conn = nil
	if b.stop() && errors.Is(err, io.EOF) && b.reusable {
		b.lanes.give(c)
	} else {
		b.lanes.drop(c)
	}
}
