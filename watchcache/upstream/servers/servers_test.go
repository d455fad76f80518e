package servers

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"go.uber.org/zap"
	"golang.org/x/net/http2"

	"github.com/watchproxy/watchproxy/proxy/conn/conntest"
	"github.com/watchproxy/watchproxy/watchcache/upstream/client"
)

// apiserver is one of several servers, in memory. It implements only the requests of checks.
type apiserver struct {
	*http.Server
	network  *conntest.Listener
	name     string // also its host
	cluster  atomic.Int64
	rv       atomic.Int64
	ready    atomic.Bool
	stalled  atomic.Bool // the server does not respond
	slow     atomic.Bool // its etcd does not respond
	secret   atomic.Bool // its namespaces may not be read
	requests atomic.Int64
}

func newAPIServer(t *testing.T, name string) *apiserver {
	t.Helper()
	a := &apiserver{name: name, network: conntest.Listen(1 << 16)}
	a.rv.Store(100)
	a.ready.Store(true)
	a.Server = &http.Server{Handler: a}
	var serving sync.WaitGroup
	serving.Go(func() { _ = a.Serve(a.network) })
	t.Cleanup(func() {
		_ = a.Close()
		serving.Wait()
	})
	return a
}

// ServeHTTP implements http.Handler.
func (a *apiserver) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if a.stalled.Load() || a.slow.Load() && strings.HasPrefix(r.URL.Path, "/api/") {
		<-r.Context().Done()
		return
	}
	switch r.URL.Path {
	case "/readyz":
		if !a.ready.Load() {
			w.WriteHeader(http.StatusInternalServerError)
		}
	case "/api/v1/namespaces/kube-system":
		if a.secret.Load() {
			w.WriteHeader(http.StatusForbidden)
			return
		}
		fmt.Fprintf(w, `{"metadata":{"uid":"%d"}}`, a.cluster.Load())
	case "/api/v1/namespaces":
		w.Header().Set("Content-Type", "application/json")
		fmt.Fprintf(w, `{"kind":"NamespaceList","apiVersion":"v1","metadata":{"resourceVersion":"%d"},"items":[]}`, a.rv.Load())
	case "/exec":
		conn, from, err := w.(http.Hijacker).Hijack()
		if err != nil {
			return
		}
		defer conn.Close()
		fmt.Fprint(conn, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: test\r\n\r\n")
		_, _ = io.Copy(io.Discard, from)
		fmt.Fprint(conn, "last words")
	case "/stream":
		w.(http.Flusher).Flush()
		<-r.Context().Done()
	default:
		a.requests.Add(1)
		fmt.Fprint(w, a.name)
	}
}

// stop ends the server. It returns when clients know.
func (a *apiserver) stop() {
	_ = a.Close()
	synctest.Wait()
}

// wayTo returns a transport to the servers.
func wayTo(t *testing.T, of []*apiserver) *http.Transport {
	t.Helper()
	transport := &http.Transport{DialContext: func(_ context.Context, network, address string) (net.Conn, error) {
		for _, a := range of {
			if address == a.name+":80" {
				if c, err := a.network.Dial(); err == nil {
					return c, nil
				}
			}
		}
		return nil, &net.OpError{Op: "dial", Net: network, Err: os.NewSyscallError("connect", syscall.ECONNREFUSED)}
	}}
	t.Cleanup(transport.CloseIdleConnections)
	return transport
}

// serversOf follows some servers until the end of the test.
func serversOf(t *testing.T, of ...*apiserver) (*Set, http.RoundTripper) {
	t.Helper()
	s, err := openServers(t, of...)
	if err != nil {
		t.Fatal(err)
	}
	follow(t, s)
	ways := make([]http.RoundTripper, len(of))
	for i := range of {
		ways[i] = wayTo(t, of)
	}
	return s, s.Transport(ways)
}

// follow runs the checks of the servers until the end of the test.
func follow(t *testing.T, s *Set) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() { s.Run(ctx) })
	t.Cleanup(func() { cancel(); running.Wait() })
}

func openServers(t *testing.T, of ...*apiserver) (*Set, error) {
	t.Helper()
	var servers []Server
	for _, a := range of {
		servers = append(servers, Server{Base: &url.URL{Scheme: "http", Host: a.name}, Transport: wayTo(t, of)})
	}
	registry := prometheus.NewRegistry()
	return New(t.Context(), servers, NewMetrics(registry), client.NewMetrics(registry), zap.NewNop())
}

// says sends a request and returns the name of the server that answered.
func says(t *testing.T, way http.RoundTripper, method, body string) (string, error) {
	t.Helper()
	req := request(t, method, "/who")
	if body != "" {
		req.Body = io.NopCloser(strings.NewReader(body))
	}
	resp, err := way.RoundTrip(req)
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	name, err := io.ReadAll(resp.Body)
	return string(name), err
}

func request(t *testing.T, method, path string) *http.Request {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, "http://any.invalid"+path, http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	return req
}

func wantAnswer(t *testing.T, way http.RoundTripper, want string) {
	t.Helper()
	if got, err := says(t, way, http.MethodGet, ""); err != nil || got != want {
		t.Errorf("%q answers, error %v, want %s", got, err, want)
	}
}

// checked requests checks of a server until a condition is true.
func checked(t *testing.T, s *Set, i int, holds func() bool) {
	t.Helper()
	for began := time.Now(); !holds(); time.Sleep(time.Millisecond) {
		s.suspect(s.servers[i])
		if time.Since(began) > 5*time.Minute {
			t.Fatalf("checks of %s never had the awaited result", s.servers[i].Base.Host)
		}
	}
}

func TestNextServerIfOneCannotBeConnectedTo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b := newAPIServer(t, "a"), newAPIServer(t, "b")
		s, way := serversOf(t, a, b)
		wantAnswer(t, way, "a")
		a.stop()
		wantAnswer(t, way, "b")
		if _, err := says(t, way, http.MethodPost, "new"); err != nil || b.requests.Load() != 2 {
			t.Errorf("error %v, %d requests, want 2", err, b.requests.Load())
		}
		if n := testutil.ToFloat64(s.metrics.failovers); n != 1 {
			t.Errorf("%v failovers counted", n)
		}
		if s.Current() != b.name {
			t.Errorf("%s is asked, want %s", s.Current(), b.name)
		}
	})
}

// A request goes to the next server if the connection broke during its handshake, but not if it broke
// later: the first server may have executed the request.
func TestNextServerIfAHandshakeFails(t *testing.T) {
	readsHead := func(c net.Conn) {
		framer := http2.NewFramer(c, c)
		_, err := io.ReadFull(c, make([]byte, len(http2.ClientPreface)))
		_ = framer.WriteSettings()
		for head := false; err == nil && !head; {
			var frame http2.Frame
			frame, err = framer.ReadFrame()
			_, head = frame.(*http2.HeadersFrame)
		}
	}
	for _, c := range []struct {
		name, scheme string
		serve        func(net.Conn)
		two          bool // HTTP/2
		again        bool
	}{
		{"ends in the handshake", "https", func(c net.Conn) { _, _ = c.Read(make([]byte, 1)) }, false, true},
		{"does not speak TLS", "https", func(c net.Conn) { _, _ = c.Write([]byte("HTTP/1.1 400 Bad Request\r\n\r\n")) }, false, true},
		{"ends after the request", "http", func(c net.Conn) { _, _ = http.ReadRequest(bufio.NewReader(c)) }, false, false},
		{"ends after the request, HTTP/2", "http", readsHead, true, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				a, b := newAPIServer(t, "a"), newAPIServer(t, "b")
				s, err := openServers(t, a, b)
				if err != nil {
					t.Fatal(err)
				}
				s.servers[0].Base.Scheme = c.scheme
				var protocols http.Protocols
				protocols.SetHTTP1(!c.two)
				protocols.SetUnencryptedHTTP2(c.two)
				way := s.Transport([]http.RoundTripper{
					&http.Transport{Protocols: &protocols, DialContext: func(context.Context, string, string) (net.Conn, error) {
						client, server := conntest.Pipe(1 << 16)
						go func() {
							defer server.Close()
							c.serve(server)
						}()
						return client, nil
					}},
					wayTo(t, []*apiserver{b}),
				})
				got, err := says(t, way, http.MethodPost, "")
				if again := err == nil && got == "b"; again != c.again || (b.requests.Load() == 1) != c.again {
					t.Errorf("%q answers, error %v, %d requests at b", got, err, b.requests.Load())
				}
				if s.Current() != a.name || testutil.ToFloat64(s.metrics.failovers) != 0 || len(s.servers[0].check) != 1 {
					t.Errorf("%s is current, %d checks are requested: one request decides", s.Current(), len(s.servers[0].check))
				}
			})
		})
	}
}

// If no server completes a handshake, each of them is tried once.
func TestNoHandshakeSucceeds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, err := openServers(t, newAPIServer(t, "a"), newAPIServer(t, "b"), newAPIServer(t, "c"))
		if err != nil {
			t.Fatal(err)
		}
		var tried []string
		broken := &http.Transport{DialContext: func(_ context.Context, _, address string) (net.Conn, error) {
			tried = append(tried, address)
			return nil, errors.New("broken")
		}}
		if got, err := says(t, s.Transport([]http.RoundTripper{broken, broken, broken}), http.MethodPost, ""); err == nil {
			t.Errorf("%s answered", got)
		}
		if want := []string{"a:80", "b:80", "c:80"}; !slices.Equal(tried, want) {
			t.Errorf("%q were tried", tried)
		}
	})
}

// A body goes to the second server only if it can be read again.
func TestBodyGoesToOneServer(t *testing.T) {
	for _, again := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			a, b := newAPIServer(t, "a"), newAPIServer(t, "b")
			_, way := serversOf(t, a, b)
			a.stop()
			req := request(t, http.MethodPost, "/who")
			req.Body, req.GetBody = io.NopCloser(strings.NewReader("new")), nil
			if again {
				req.GetBody = func() (io.ReadCloser, error) { return io.NopCloser(strings.NewReader("new")), nil }
			}
			resp, err := way.RoundTrip(req)
			if err == nil {
				resp.Body.Close()
			}
			if taken := err == nil; taken != again || b.requests.Load() != map[bool]int64{true: 1}[again] {
				t.Errorf("can be read again: %t, taken: %t, requests: %d, error: %v", again, taken, b.requests.Load(), err)
			}
			wantAnswer(t, way, "b")
		})
	}
}

func TestServerThatIsNotReadyIsLeft(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b := newAPIServer(t, "a"), newAPIServer(t, "b")
		s, way := serversOf(t, a, b)
		a.ready.Store(false)
		checked(t, s, 0, func() bool { return s.Current() != a.name })
		wantAnswer(t, way, "b")
		a.ready.Store(true)
		checked(t, s, 0, func() bool { return testutil.ToFloat64(s.metrics.usable.WithLabelValues(a.name)) == 1 })
		wantAnswer(t, way, "b") // there is no reason to return to a
		b.ready.Store(false)
		checked(t, s, 1, func() bool { return s.Current() != b.name })
		wantAnswer(t, way, "a")
	})
}

// If a server does not respond at all, its streams are cut. They resume at another server.
func TestStreamsOfADeadServerAreCut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b := newAPIServer(t, "a"), newAPIServer(t, "b")
		s, way := serversOf(t, a, b)
		resp, err := way.RoundTrip(request(t, http.MethodGet, "/stream"))
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		a.stalled.Store(true)
		for range lostAfter {
			s.note(s.servers[0], silentCheck)
		}
		if _, err := resp.Body.Read(make([]byte, 1)); !errors.Is(err, errDead) {
			t.Errorf("the stream ended with %v", err)
		}
		wantAnswer(t, way, "b")
	})
}

var silentCheck = checkResult{err: &url.Error{Op: "Get", Err: context.DeadlineExceeded}, silent: true}

// A server that responds keeps its streams, even if its etcd does not respond. A silent server also
// keeps its streams if no other server is usable.
func TestStreamsStayIfNoServerIsBetter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b := newAPIServer(t, "a"), newAPIServer(t, "b")
		s, way := serversOf(t, a, b)
		resp := upgrade(t, way)
		defer resp.Body.Close()
		life := s.servers[0].life.Load()
		a.slow.Store(true)
		b.slow.Store(true)
		for range 2 * lostAfter {
			for _, one := range s.servers {
				s.note(one, s.ask(t.Context(), one))
			}
		}
		for range 2 * lostAfter {
			for _, one := range s.servers {
				s.note(one, silentCheck)
			}
		}
		if life.Err() != nil {
			t.Error("streams were cut, and there is nowhere to go")
		}
		b.slow.Store(false)
		s.note(s.servers[1], s.ask(t.Context(), s.servers[1]))
		s.note(s.servers[0], silentCheck)
		if _, err := resp.Body.Read(make([]byte, 1)); err == nil || life.Err() == nil {
			t.Errorf("the tunnel goes on: %v", err)
		}
	})
}

// A server that refuses connections may be about to stop. It keeps its requests for a while, although
// another server is usable.
func TestStoppingServerKeepsItsRequests(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b := newAPIServer(t, "a"), newAPIServer(t, "b")
		s, way := serversOf(t, a, b)
		resp := upgrade(t, way)
		defer resp.Body.Close()
		life := s.servers[0].life.Load()
		_ = a.Shutdown(t.Context()) // the tunnel stays
		time.Sleep(stopsFor - time.Second)
		if s.servers[s.current.Load()] != s.servers[1] {
			t.Error("it is still used")
		}
		if life.Err() != nil {
			t.Error("its requests were cut")
		}
		time.Sleep(2 * checkEvery)
		if life.Err() == nil {
			t.Error("its requests are kept for ever")
		}
	})
}

// When a client closes its side of a tunnel, the server detects this. The client still receives the
// server's response.
func TestHalfClosedTunnel(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b := newAPIServer(t, "a"), newAPIServer(t, "b")
		_, way := serversOf(t, a, b)
		resp := upgrade(t, way)
		defer resp.Body.Close()
		tunnel := resp.Body.(interface {
			io.Writer
			CloseWrite() error
		})
		if _, err := io.WriteString(tunnel, "input"); err != nil {
			t.Fatal(err)
		}
		if err := tunnel.CloseWrite(); err != nil {
			t.Fatal(err)
		}
		if said, err := io.ReadAll(resp.Body); string(said) != "last words" {
			t.Errorf("%q, %v", said, err)
		}
	})
}

func upgrade(t *testing.T, way http.RoundTripper) *http.Response {
	t.Helper()
	req := request(t, http.MethodGet, "/exec")
	req.Header.Set("Connection", "Upgrade")
	req.Header.Set("Upgrade", "test")
	resp, err := way.RoundTrip(req)
	if err != nil || resp.StatusCode != http.StatusSwitchingProtocols {
		t.Fatal(resp, err)
	}
	return resp
}

// A request that the client cancels does not count as a failure of the server.
func TestOnesOwnCancellationIsNoFailure(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b := newAPIServer(t, "a"), newAPIServer(t, "b")
		s, way := serversOf(t, a, b)
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if resp, err := way.RoundTrip(request(t, http.MethodGet, "/who").WithContext(ctx)); !errors.Is(err, context.Canceled) {
			t.Errorf("got %v, %v", resp, err)
		}
		if s.Current() != a.name {
			t.Errorf("%s is asked", s.Current())
		}
	})
}

func TestNoServerIsFit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b := newAPIServer(t, "a"), newAPIServer(t, "b")
		a.ready.Store(false)
		b.stop()
		_, err := openServers(t, a, b)
		if err == nil || !strings.Contains(err.Error(), a.name+": /readyz: 500") || !strings.Contains(err.Error(), b.name) {
			t.Errorf("got %v", err)
		}
	})
}
