package proxy

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/net/http/httpguts"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/client-go/rest"
)

const (
	// laneMost is how many connections lanes have at most.
	laneMost = 8
	// laneRest is how long one is kept without work. Kube-apiserver keeps it for 90 s, but one without its first
	// request for 32 s.
	laneRest, laneNew = time.Minute, 20 * time.Second
	// laneAge is how long one is used at all: servers, their authorities and our certificates change.
	laneAge = 5 * time.Minute
	// laneDemand is within which time two requests have to want one, so that it is opened.
	laneDemand = time.Second
	// laneLists is how many of them lists have at most.
	laneLists = laneMost / 2
	// lanePause is how long none is opened after one could not be, was silent, or two broke.
	lanePause = 10 * time.Second
	// laneDial bounds the opening of one.
	laneDial = 10 * time.Second
	// laneSilence is how long an answer may not begin, or half as long again, after which it is asked for anew by the
	// other way. There, client-go gives up after 45 s of silence.
	laneSilence = 30 * time.Second
	// laneHeader bounds the header of an answer, in bytes.
	laneHeader = 1 << 20
)

// lanes are a way upstream for gets of single objects, and for short lists that the cache could not answer in time: over an HTTP/1.1 connection that has nothing else to do, written
// and read by who asks. Net/http gives both to goroutines of the connection, over HTTP/2 the request to one more; each
// handing over wakes a thread, which takes longer than what it then does.
//
// As either may be sent twice, whatever goes wrong before its answer has begun is left to the other way, which has all
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
		failed  time.Time // when they did
		broke   time.Time // when one did
		lists   int       // how many have a list
		closing bool      // a timer is set that closes those without work
	}
}

// brief marks the context of a request for lanes. It is true for a list, whose client may read slowly: half of the lanes at
// most are for those.
type brief struct{}

// getsOneObject tells gets of single objects.
func (r *request) getsOneObject(rt route) bool {
	return r.method == http.MethodGet && rt.verb == "get" && rt.resource && rt.plain && rt.name != "" && rt.subresource == "" &&
		r.body == nil && !r.wantsUpgrade()
}

// withLanes makes a configuration one for a transport with lanes to its server, as a copy. There are none to a server behind a
// proxy; nor if connections or requests are made in a way of their own, as with an exec plugin: lanes would miss it, or could
// not look at what comes.
func withLanes(config *rest.Config) *rest.Config {
	config = rest.CopyConfig(config)
	if config.WrapTransport != nil || config.Transport != nil {
		return config
	}
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
	if err != nil || made.DialHolder != nil {
		return config
	}
	config.Wrap(func(otherwise http.RoundTripper) http.RoundTripper {
		return &lanes{otherwise: otherwise, base: base, dial: func(ctx context.Context) (net.Conn, error) { return dialLane(ctx, made, base) }}
	})
	return config
}

// RoundTrip implements http.RoundTripper.
func (l *lanes) RoundTrip(req *http.Request) (*http.Response, error) {
	if l.carry(req) {
		list, _ := req.Context().Value(brief{}).(bool)
		if c := l.take(list); c != nil {
			resp, err := l.exchange(c, req)
			if err == nil || req.Context().Err() != nil {
				return resp, err
			}
			l.broke(err)
		}
	}
	return l.otherwise.RoundTrip(req)
}

// WrappedRoundTripper implements utilnet.RoundTripperWrapper.
func (l *lanes) WrappedRoundTripper() http.RoundTripper { return l.otherwise }

// CloseIdleConnections closes all connections without work, as client-go wants it now and then.
func (l *lanes) CloseIdleConnections() {
	l.mu.Lock()
	l.closeIdleLocked(func(*laneConn) bool { return true })
	l.mu.Unlock()
	utilnet.CloseIdleConnectionsFor(l.otherwise)
}

// carry tells whether a request is for lanes, and means the same by HTTP/1.1.
func (l *lanes) carry(req *http.Request) bool {
	if req.Context().Value(brief{}) == nil || req.URL.Host != l.base.Host || req.URL.Scheme != l.base.Scheme ||
		strings.ContainsFunc(req.URL.RequestURI(), func(c rune) bool { return c <= ' ' || c == 0x7f }) {
		return false
	}
	for name, values := range req.Header {
		if !httpguts.ValidHeaderFieldName(name) || name == "Expect" {
			return false
		}
		for _, v := range values {
			if !httpguts.ValidHeaderFieldValue(v) || v != strings.TrimSpace(v) {
				return false
			}
		}
	}
	return true
}

// take returns a connection without work, for a list or not. If there is none, it sees to it that there will be.
func (l *lanes) take(list bool) *laneConn {
	l.mu.Lock()
	defer l.mu.Unlock()
	if list && l.mu.lists >= laneLists {
		return nil
	}
	now := time.Now()
	for n := len(l.mu.idle); n > 0; n = len(l.mu.idle) {
		c := l.mu.idle[n-1]
		l.mu.idle = l.mu.idle[:n-1]
		if !c.worn(now) && !c.stale() {
			if c.list = list; list {
				l.mu.lists++
			}
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

// give takes a connection back that has no work any more.
func (l *lanes) give(c *laneConn) {
	l.mu.Lock()
	defer l.mu.Unlock()
	c.used = time.Now()
	l.endLocked(c)
	l.giveLocked(c)
}

func (l *lanes) giveLocked(c *laneConn) {
	l.mu.idle = append(l.mu.idle, c)
	if !l.mu.closing {
		l.mu.closing = true
		time.AfterFunc(laneRest, l.closeWorn)
	}
}

// endLocked notes that what a connection had to do is over.
func (l *lanes) endLocked(c *laneConn) {
	if c.list {
		c.list = false
		l.mu.lists--
	}
}

// drop closes a connection that is of no further use.
func (l *lanes) drop(c *laneConn) {
	l.mu.Lock()
	l.mu.open--
	l.endLocked(c)
	l.mu.Unlock()
	_ = c.Close() // who was to be told has been
}

func (l *lanes) closeLocked(c *laneConn) {
	l.mu.open--
	_ = c.Close() // it has no work
}

// broke notes that a connection did before its answer. If that was by silence, or not the only one, others may, too: all
// without work are closed, and none is opened for a while.
func (l *lanes) broke(err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	before := l.mu.broke
	l.mu.broke = time.Now()
	if errors.Is(err, os.ErrDeadlineExceeded) || l.mu.broke.Sub(before) < laneDemand {
		l.pauseLocked()
	}
}

func (l *lanes) pauseLocked() {
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

// exchange sends a request and returns its answer. The connection is given back when the answer was read.
func (l *lanes) exchange(c *laneConn, req *http.Request) (*http.Response, error) {
	stop := context.AfterFunc(req.Context(), func() { l.drop(c) })
	resp, err := c.ask(req)
	if err != nil {
		if stop() {
			l.drop(c)
		}
		return nil, err
	}
	body := &laneBody{ReadCloser: resp.Body, lanes: l, conn: c, stop: stop, reusable: !resp.Close}
	if resp.Body == http.NoBody {
		body.ended(io.EOF)
	}
	resp.Body = body
	return resp, nil
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

// ended lets go of the connection. If the request's context has ended, that has been done.
func (b *laneBody) ended(err error) {
	c := b.conn
	if c == nil {
		return
	}
	b.conn = nil
	switch {
	case !b.stop():
	case errors.Is(err, io.EOF) && b.reusable:
		b.lanes.give(c)
	default:
		b.lanes.drop(c)
	}
}
