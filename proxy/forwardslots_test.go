package proxy

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"
	"k8s.io/apimachinery/pkg/runtime/schema"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/cert"

	"github.com/watchproxy/watchproxy/proxy/access"
	"github.com/watchproxy/watchproxy/proxy/derived"
	"github.com/watchproxy/watchproxy/proxy/exchange"
	"github.com/watchproxy/watchproxy/proxy/metrics"
	"github.com/watchproxy/watchproxy/proxy/read"
	"github.com/watchproxy/watchproxy/watchcache/object"
)

// forwardsAll are the feeds of a server without caches.
type forwardsAll struct{}

// Lost implements Feeds.
func (forwardsAll) Lost(schema.GroupVersionResource) time.Duration { return 0 }

// Joins implements Feeds.
func (forwardsAll) Joins(schema.GroupVersionResource, object.Want, object.Encoding, func() bool) bool {
	return false
}

// Caches implements Feeds.
func (forwardsAll) Caches(schema.GroupVersionResource, object.Want) bool { return false }

// Open implements Feeds.
func (forwardsAll) Open(context.Context, schema.GroupVersionResource, object.Want, object.Encoding, uint64) (read.Feed, error) {
	return nil, read.Uncached
}

// serveForwards runs a server over TLS that forwards everything to a handler.
func serveForwards(t *testing.T, upstream http.HandlerFunc, limits exchange.Limits) (*Server, net.Addr) {
	t.Helper()
	return serveFeeds(t, forwardsAll{}, upstream, limits, nil)
}

// serveFeeds runs a server over TLS whose upstream is the handler.
func serveFeeds(t *testing.T, feeds read.Feeds, upstream http.HandlerFunc, limits exchange.Limits, by *access.Access) (*Server, net.Addr) {
	t.Helper()
	return serveTo(t, feeds, upstream, Options{
		Options: read.Options{SyncTimeout: time.Minute, Access: by}, Stall: time.Minute, Limits: limits, AnyHost: true, TLS: selfSigned(t),
	})
}

// serveStrangers runs a server that refuses long paths before it authenticates the client.
func serveStrangers(t *testing.T, overTLS bool, limits exchange.Limits) (*Server, net.Addr) {
	t.Helper()
	limits.URIBytes = 64
	o := Options{Stall: time.Minute, Limits: limits, AnyHost: true}
	if overTLS {
		o.TLS = selfSigned(t)
	}
	return serveTo(t, forwardsAll{}, http.NotFound, o)
}

func selfSigned(t *testing.T) *tls.Config {
	t.Helper()
	certificate, key, err := cert.GenerateSelfSignedCertKey("localhost", []net.IP{net.IPv4(127, 0, 0, 1)}, nil)
	if err != nil {
		t.Fatal(err)
	}
	pair, err := tls.X509KeyPair(certificate, key)
	if err != nil {
		t.Fatal(err)
	}
	return &tls.Config{Certificates: []tls.Certificate{pair}, NextProtos: []string{"h2", "http/1.1"}} //nolint:gosec // a test
}

// serveTo runs a server in front of a handler until the test ends.
func serveTo(t *testing.T, feeds read.Feeds, upstream http.HandlerFunc, options Options) (*Server, net.Addr) {
	t.Helper()
	return serveLogged(t, feeds, upstream, options, prometheus.NewRegistry(), zap.NewNop())
}

// serveLogged is like serveTo. It registers the metrics in registry and logs to log.
func serveLogged(t *testing.T, feeds read.Feeds, upstream http.HandlerFunc, options Options, registry *prometheus.Registry, log *zap.Logger) (*Server, net.Addr) {
	t.Helper()
	behind := httptest.NewServer(upstream)
	t.Cleanup(behind.Close)
	var ways []http.RoundTripper
	forwards, err := forwarderTo(&rest.Config{Host: behind.URL}, func(way http.RoundTripper) http.RoundTripper {
		ways = append(ways, way)
		return way
	})
	if err != nil {
		t.Fatal(err)
	}
	s := NewServer(feeds, forwards, newStore(t, 1<<20), options, metrics.New(registry), log)
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	var running sync.WaitGroup
	running.Go(func() {
		if err := s.Serve(ctx, listener); err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(func() {
		cancel()
		running.Wait()
		for _, way := range ways {
			utilnet.CloseIdleConnectionsFor(way)
		}
	})
	return s, listener.Addr()
}

// endless is an upstream whose responses have no length and no end. It reports when a response is
// given up.
func endless(gaveUp chan<- struct{}) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		part := bytes.Repeat([]byte("x"), 64<<10)
		for {
			if _, err := w.Write(part); err != nil {
				gaveUp <- struct{}{}
				return
			}
		}
	}
}

// insecure returns the TLS configuration of a client that trusts any server.
func insecure(protocols ...string) *tls.Config {
	return &tls.Config{InsecureSkipVerify: true, NextProtos: protocols} //nolint:gosec // a test
}

// testWait limits every wait in a test.
const testWait = 30 * time.Second

// A client that does not read its response does not hold its slot forever, however long the
// response is.
func TestUnreadForwardIsCut(t *testing.T) {
	for _, protocol := range []string{"http/1.1", "h2"} {
		t.Run(protocol, func(t *testing.T) {
			gaveUp := make(chan struct{}, 1)
			limits := testLimits()
			limits.Write = 200 * time.Millisecond
			s, address := serveForwards(t, endless(gaveUp), limits)
			transport := &http.Transport{
				TLSClientConfig: insecure(protocol),
				Protocols:       new(http.Protocols),
			}
			transport.Protocols.SetHTTP1(protocol == "http/1.1")
			transport.Protocols.SetHTTP2(protocol == "h2")
			defer transport.CloseIdleConnections()
			req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "https://"+address.String()+"/api/v1/pods", http.NoBody)
			if err != nil {
				t.Fatal(err)
			}
			resp, err := transport.RoundTrip(req)
			if err != nil {
				t.Fatal(err)
			}
			defer resp.Body.Close()
			if s.forwardSlots.Taken() != 1 {
				t.Fatalf("%d slots are taken", s.forwardSlots.Taken())
			}
			select {
			case <-gaveUp:
			case <-time.After(testWait):
				t.Fatal("the answer goes on")
			}
			if _, err := io.Copy(io.Discard, resp.Body); err == nil {
				t.Error("to the client the answer ended as if it were whole")
			}
			waitFor(t, "the slot is free", func() bool { return s.forwardSlots.Taken() == 0 })
		})
	}
}

func waitFor(t *testing.T, what string, is func() bool) {
	t.Helper()
	for began := time.Now(); !is(); time.Sleep(time.Millisecond) {
		if time.Since(began) > testWait {
			t.Fatalf("not within %v: %s", testWait, what)
		}
	}
}

// The same is true for HTTP/1.0 on a used connection, although there the proxy writes the response
// itself.
func TestUnreadForwardOfOldClientIsCut(t *testing.T) {
	gaveUp := make(chan struct{}, 1)
	limits := testLimits()
	limits.Write = time.Second
	without := endless(gaveUp)
	_, address := serveForwards(t, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/version" {
			without(w, r)
		}
	}, limits)
	client := dialTLS(t, address)
	send(t, client, "GET /version HTTP/1.0\r\nHost: localhost\r\nConnection: keep-alive\r\n\r\n")
	if _, err := client.Read(make([]byte, 1<<10)); err != nil {
		t.Fatal(err)
	}
	send(t, client, "GET /api/v1/pods HTTP/1.0\r\nHost: localhost\r\n\r\n")
	select {
	case <-gaveUp:
	case <-time.After(testWait):
		t.Fatal("the answer goes on")
	}
}

// A request holds a slot while upstream works on it. A request with an endless response counts as
// one of its user's watches instead, whatever its parameters are.
func TestSlotsOfForwards(t *testing.T) {
	type taken struct{ slots, watches int }
	for name, test := range map[string]struct {
		request string
		want    taken
	}{
		"list":                    {"GET /api/v1/pods HTTP/1.1\r\n", taken{slots: 1}},
		"list, upgrade":           {"GET /api/v1/pods HTTP/1.1\r\nConnection: Upgrade\r\nUpgrade: x\r\n", taken{slots: 1}},
		"log":                     {"GET /api/v1/namespaces/a/pods/b/log HTTP/1.1\r\n", taken{watches: 1}},
		"log, escaped":            {"GET /api/v1/namespaces/a/pods/b/%6cog HTTP/1.1\r\n", taken{watches: 1}},
		"object named log":        {"GET /api/v1/namespaces/a/pods/log HTTP/1.1\r\n", taken{slots: 1}},
		"watch":                   {"GET /api/v1/pods?watch=1 HTTP/1.1\r\n", taken{watches: 1}},
		"watch, escaped":          {"GET /api/v1/pods?%77atch=1 HTTP/1.1\r\n", taken{watches: 1}},
		"old watch":               {"GET /api/v1/watch/pods HTTP/1.1\r\n", taken{watches: 1}},
		"old watch, escaped":      {"GET /api/v1/%77atch/pods HTTP/1.1\r\n", taken{watches: 1}},
		"watch that is none":      {"GET /api/v1/pods?watch=0 HTTP/1.1\r\n", taken{slots: 1}},
		"watch of something else": {"GET /version?watch=1 HTTP/1.1\r\n", taken{slots: 1}},
		"create":                  {"POST /api/v1/namespaces/a/pods?watch=1 HTTP/1.1\r\nContent-Length: 0\r\n", taken{slots: 1}},
	} {
		t.Run(name, func(t *testing.T) {
			arrived := make(chan struct{})
			s, address := serveForwards(t, func(_ http.ResponseWriter, r *http.Request) {
				close(arrived)
				<-r.Context().Done()
			}, testLimits())
			client := dialTLS(t, address)
			send(t, client, test.request+"Host: localhost\r\n\r\n")
			select {
			case <-arrived:
			case <-time.After(testWait):
				t.Fatal("upstream was not asked")
			}
			s.limits.watches.mu.Lock()
			got := taken{slots: int(s.forwardSlots.Taken()), watches: s.limits.watches.mu.held[""]}
			s.limits.watches.mu.Unlock()
			if got != test.want {
				t.Errorf("it takes %+v, want %+v", got, test.want)
			}
			_ = client.Close()
			waitFor(t, "what was taken is given back", func() bool {
				s.limits.watches.mu.Lock()
				defer s.limits.watches.mu.Unlock()
				return int(s.forwardSlots.Taken())+len(s.limits.watches.mu.held) == 0
			})
		})
	}
}

// An upgrade that upstream has accepted has no time limit, and holds no slot.
func TestUpgradedTakesNoSlot(t *testing.T) {
	s, address := serveForwards(t, func(w http.ResponseWriter, _ *http.Request) {
		c, _, err := http.NewResponseController(w).Hijack()
		if err != nil {
			t.Error(err)
			return
		}
		defer c.Close()
		_, _ = io.WriteString(c, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: x\r\n\r\n")
		_, _ = io.Copy(io.Discard, c)
	}, testLimits())
	client := dialTLS(t, address)
	send(t, client, "GET /api/v1/pods HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: x\r\n\r\n")
	line, err := bufio.NewReader(client).ReadString('\n')
	if err != nil || !strings.Contains(line, "101") {
		t.Fatalf("%q %v", line, err)
	}
	if n := s.forwardSlots.Taken(); n != 0 {
		t.Errorf("%d slots are taken", n)
	}
}

func dialTLS(t *testing.T, address net.Addr) *tls.Conn {
	t.Helper()
	c, err := tls.Dial(address.Network(), address.String(), insecure())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Close(); err != nil && !errors.Is(err, net.ErrClosed) {
			t.Log(err)
		}
	})
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
