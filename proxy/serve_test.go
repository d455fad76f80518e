package proxy

import (
	"context"
	"crypto/tls"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"

	"github.com/watchproxy/watchproxy/proxy/access"
	"github.com/watchproxy/watchproxy/proxy/derived"
	"github.com/watchproxy/watchproxy/proxy/exchange"
	"github.com/watchproxy/watchproxy/proxy/forward"
	"github.com/watchproxy/watchproxy/proxy/metrics"
	"github.com/watchproxy/watchproxy/proxy/read"
	"github.com/watchproxy/watchproxy/watchcache/object"
)

// forwardsAll are the feeds of a server without caches.
type forwardsAll struct{}

// Lost implements Feeds.
func (forwardsAll) Lost(schema.GroupVersionResource) time.Duration { return 0 }

// AnswersGets implements Feeds.
func (forwardsAll) AnswersGets(schema.GroupVersionResource, object.Want, object.Encoding) bool {
	return false
}

// Caches implements Feeds.
func (forwardsAll) Caches(schema.GroupVersionResource, object.Want) bool { return false }

// Open implements Feeds.
func (forwardsAll) Open(context.Context, schema.GroupVersionResource, object.Want, object.Encoding, uint64) (read.Feed, error) {
	return nil, read.Uncached
}

// oneFeed are the feeds of a server that caches one resource. If the field opening is set, each
// Open calls it.
type oneFeed struct {
	forwardsAll
	feed    read.Feed
	opening func(context.Context)
}

// Caches implements Feeds.
func (oneFeed) Caches(schema.GroupVersionResource, object.Want) bool { return true }

// Open implements Feeds.
func (f oneFeed) Open(ctx context.Context, _ schema.GroupVersionResource, _ object.Want, _ object.Encoding, _ uint64) (read.Feed, error) {
	if f.opening != nil {
		f.opening(ctx)
	}
	return f.feed, nil
}

const watchTarget = "/api/v1/namespaces/a/configmaps?watch=1&resourceVersion="

// serveForwards runs a server over TLS that forwards everything to a handler.
func serveForwards(t *testing.T, upstream http.HandlerFunc, limits exchange.Limits) (*Server, *rawListener) {
	t.Helper()
	return serveFeeds(t, forwardsAll{}, upstream, limits, nil)
}

// serveFeeds runs a server over TLS whose upstream is the handler.
func serveFeeds(t *testing.T, feeds read.Feeds, upstream http.HandlerFunc, limits exchange.Limits, by *access.Access) (*Server, *rawListener) {
	t.Helper()
	o := testOptions()
	o.Limits, o.Access = limits, by
	return serveTo(t, feeds, upstream, o)
}

// testOptions are the options of a server over TLS.
func testOptions() Options {
	return Options{Fixed: Fixed{AnyHost: true, TLS: selfSigned()}, Options: read.Options{SyncTimeout: time.Minute}, Limits: testLimits()}
}

// certificates are those of all servers. No client verifies them.
var certificates = sync.OnceValue(func() []tls.Certificate {
	lender := httptest.NewTLSServer(nil)
	defer lender.Close()
	return lender.TLS.Certificates
})

func selfSigned() *tls.Config {
	return &tls.Config{Certificates: certificates(), NextProtos: []string{"h2", "http/1.1"}} //nolint:gosec // a test
}

// serveTo runs a server in front of a handler until the test ends. All connections are pipes, so
// the test may run in a bubble. A write to a pipe waits until the other end reads.
func serveTo(t *testing.T, feeds read.Feeds, upstream http.HandlerFunc, options Options) (*Server, *rawListener) {
	t.Helper()
	return serveLogged(t, feeds, upstream, options, prometheus.NewRegistry(), zap.NewNop())
}

// serveLogged is like serveTo. It registers the metrics in registry and logs to logger.
func serveLogged(t *testing.T, feeds read.Feeds, upstream http.HandlerFunc, options Options, registry *prometheus.Registry, logger *zap.Logger) (*Server, *rawListener) {
	t.Helper()
	l := newRawListener()
	return serveOn(t, l, feeds, upstream, options, registry, logger), l
}

// serveSocket is like serveTo, but the clients' connections are sockets.
func serveSocket(t *testing.T, feeds read.Feeds, upstream http.HandlerFunc, options Options) (*Server, net.Addr) {
	t.Helper()
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	return serveOn(t, l, feeds, upstream, options, prometheus.NewRegistry(), zap.NewNop()), l.Addr()
}

func serveOn(t *testing.T, l net.Listener, feeds read.Feeds, upstream http.HandlerFunc, options Options, registry *prometheus.Registry, logger *zap.Logger) *Server {
	t.Helper()
	return serveBefore(t, l, feeds, behind(t, upstream), options, registry, logger)
}

// serveBefore is like serveOn. The parameter upstream is the configuration of upstream's clients.
func serveBefore(t *testing.T, l net.Listener, feeds read.Feeds, upstream *rest.Config, options Options, registry *prometheus.Registry, logger *zap.Logger) *Server {
	t.Helper()
	forwards, err := forwarderTo(upstream, nil)
	if err != nil {
		t.Fatal(err)
	}
	return serveThrough(t, l, feeds, forwards, options, registry, logger)
}

// serveThrough is serveBefore with a forwarder.
func serveThrough(t *testing.T, l net.Listener, feeds read.Feeds, forwards *forward.Forwarder, options Options, registry *prometheus.Registry, logger *zap.Logger) *Server {
	t.Helper()
	s := NewServer(Parts{feeds, forwards, newStore(t, 1<<20), metrics.New(registry), logger}, options)
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	var running sync.WaitGroup
	running.Go(func() {
		if err := s.Serve(ctx, l); err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(func() {
		cancel()
		running.Wait()
	})
	return s
}

// behind runs an HTTP server until the test ends, and returns the configuration of its clients.
func behind(tb testing.TB, handler http.HandlerFunc) *rest.Config {
	tb.Helper()
	l, server := newRawListener(), &http.Server{Handler: handler, ErrorLog: log.New(io.Discard, "", 0)}
	var running sync.WaitGroup
	running.Go(func() { _ = server.Serve(l) })
	tb.Cleanup(func() {
		server.Close()
		running.Wait()
	})
	return &rest.Config{Host: "http://" + l.String(), Dial: l.dial}
}

// insecure returns the TLS configuration of a client that trusts any server.
func insecure(protocols ...string) *tls.Config {
	return &tls.Config{InsecureSkipVerify: true, NextProtos: protocols} //nolint:gosec // a test
}

// httpClient is a client that always speaks the same protocol, over TLS.
type httpClient struct {
	*http.Transport
	url string
}

func clientTo(t *testing.T, l *rawListener, protocol string) *httpClient {
	t.Helper()
	transport := &http.Transport{TLSClientConfig: insecure(protocol), Protocols: new(http.Protocols), DialContext: l.dial}
	transport.Protocols.SetHTTP1(protocol == "http/1.1")
	transport.Protocols.SetHTTP2(protocol == "h2")
	t.Cleanup(transport.CloseIdleConnections)
	return &httpClient{transport, "https://" + l.String()}
}

// open sends a GET with pairs of a header's name and value. The body stays open until the test ends.
func (c *httpClient) open(t *testing.T, target string, header ...string) *http.Response {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, c.url+target, http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	for pair := range slices.Chunk(header, 2) {
		req.Header.Add(pair[0], pair[1])
	}
	resp, err := c.RoundTrip(req)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { resp.Body.Close() })
	return resp
}

// get is like open, and reads the body.
func (c *httpClient) get(t *testing.T, target string, header ...string) (*http.Response, string) {
	t.Helper()
	resp := c.open(t, target, header...)
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatalf("%s: %v", target, err)
	}
	return resp, string(body)
}

// sized is a body of known length.
type sized struct {
	io.Reader
	length int64
}

// send sends a request and reads its response. The user may be empty.
func (c *httpClient) send(ctx context.Context, user, method, target string, body io.Reader) (code int, err error) {
	req, err := http.NewRequestWithContext(ctx, method, c.url+target, body)
	if err != nil {
		return 0, err
	}
	if user != "" {
		req.Header.Set("Authorization", "Bearer "+user)
	}
	if of, ok := body.(sized); ok {
		req.ContentLength = of.length
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := c.RoundTrip(req)
	if err != nil {
		return 0, err
	}
	defer resp.Body.Close()
	_, err = io.Copy(io.Discard, resp.Body)
	return resp.StatusCode, err
}

// testWait limits every wait in a test.
const testWait = 2 * time.Minute

func waitFor(t *testing.T, what string, is func() bool) {
	t.Helper()
	for began := time.Now(); !is(); time.Sleep(time.Millisecond) {
		if time.Since(began) > testWait {
			t.Fatalf("not within %v: %s", testWait, what)
		}
	}
}

// dial connects a client without TLS.
func dial(t *testing.T, l *rawListener) net.Conn {
	t.Helper()
	c, err := l.dial(t.Context(), "", "")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

// dialTLS connects a client over TLS.
func dialTLS(t *testing.T, l *rawListener, protocols ...string) *tls.Conn {
	t.Helper()
	c := tls.Client(dial(t, l), insecure(protocols...))
	if err := c.HandshakeContext(t.Context()); err != nil {
		t.Fatal(err)
	}
	return c
}

func send(t *testing.T, c net.Conn, request string) {
	t.Helper()
	if _, err := io.WriteString(c, request); err != nil {
		t.Fatal(err)
	}
}

// newStore returns a test's store of derived bytes.
func newStore(tb testing.TB, limit int64) *derived.Store {
	tb.Helper()
	d := derived.New(limit, prometheus.NewRegistry())
	tb.Cleanup(d.Close)
	return d
}

// noConn is the connection of a request without one.
type noConn struct{}

// RemoteAddr implements Conn.
func (noConn) RemoteAddr() net.Addr { return &net.TCPAddr{} }

// Crowded implements Conn.
func (noConn) Crowded() bool { return false }
func (noConn) User() string  { return "" }

// HoldAs implements Conn.
func (noConn) HoldAs(_ string, take func() (giveBack func(), ok bool)) bool {
	_, ok := take()
	return ok
}
