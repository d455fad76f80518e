package client

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
	"k8s.io/client-go/util/connrotation"

	"github.com/watchproxy/watchproxy/bench/conntest"
)

// apiserver is one of several servers, in memory. It implements only the requests of checks.
type apiserver struct {
	*http.Server
	network  *conntest.Listener
	name     string // also its host
	rv       atomic.Int64
	ready    atomic.Bool
	stalled  atomic.Bool // the server does not respond
	slow     atomic.Bool // its etcd does not respond
	refuses  atomic.Bool // it refuses the proxy's credentials
	hidden   atomic.Bool // its /readyz may not be read
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
	if a.refuses.Load() {
		w.WriteHeader(http.StatusUnauthorized)
		return
	}
	switch r.URL.Path {
	case "/readyz":
		if !a.ready.Load() {
			w.WriteHeader(http.StatusInternalServerError)
		} else if a.hidden.Load() {
			w.WriteHeader(http.StatusForbidden)
		}
	case "/api/v1/namespaces":
		w.Header().Set("Content-Type", "application/json")
		fmt.Fprintf(w, `{"kind":"NamespaceList","apiVersion":"v1","metadata":{"resourceVersion":"%d"},"items":[]}`, a.rv.Load())
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

// wayTo returns a transport to one of the servers, and a function that cuts its connections.
func wayTo(t *testing.T, a *apiserver) (*http.Transport, *connrotation.Dialer) {
	t.Helper()
	dialer := connrotation.NewDialer(func(_ context.Context, network, address string) (net.Conn, error) {
		if c, err := a.network.Dial(); err == nil && address == a.name+":80" {
			return c, nil
		}
		return nil, &net.OpError{Op: "dial", Net: network, Err: os.NewSyscallError("connect", syscall.ECONNREFUSED)}
	})
	transport := &http.Transport{DialContext: dialer.DialContext}
	t.Cleanup(transport.CloseIdleConnections)
	return transport, dialer
}

// serversOf follows some servers until the end of the test.
func serversOf(t *testing.T, of ...*apiserver) (*Servers, http.RoundTripper) {
	t.Helper()
	s, err := openServers(t, of...)
	if err != nil {
		t.Fatal(err)
	}
	follow(t, s)
	synctest.Wait() // for the first checks
	ways := make([]http.RoundTripper, len(of))
	for i, one := range s.servers {
		ways[i] = one.Transport
	}
	return s, s.Transport(ways)
}

// follow runs the checks of the servers until the end of the test.
func follow(t *testing.T, s *Servers) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() { s.Run(ctx) })
	t.Cleanup(func() { cancel(); running.Wait() })
}

func openServers(t *testing.T, of ...*apiserver) (*Servers, error) {
	t.Helper()
	var servers []Server
	for _, a := range of {
		way, dialer := wayTo(t, a)
		servers = append(servers, Server{&url.URL{Scheme: "http", Host: a.name}, way, dialer})
	}
	registry := prometheus.NewRegistry()
	return NewServers(t.Context(), servers, NewServerMetrics(registry), NewMetrics(registry), zap.NewNop())
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

// checked waits for a result of the checks.
func checked(t *testing.T, what string, holds func() bool) {
	t.Helper()
	for began := time.Now(); !holds(); time.Sleep(time.Second) {
		if time.Since(began) > time.Minute {
			t.Fatalf("never happened: %s", what)
		}
	}
}

func (s *Servers) uses(a *apiserver) func() bool { return func() bool { return s.Current() == a.name } }

// usableOf returns the metric of a server.
func (s *Servers) usableOf(a *apiserver) bool {
	return testutil.ToFloat64(s.metrics.usable.WithLabelValues(a.name)) == 1
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
		time.Sleep(2 * checkRest)
		if s.Current() != b.name {
			t.Errorf("%s is asked, want %s", s.Current(), b.name)
		}
		time.Sleep(time.Minute)
		if age := float64(time.Now().Unix()) - testutil.ToFloat64(s.metrics.answers.WithLabelValues(a.name)); age < 60 {
			t.Errorf("the last answer is %v s old, and connections are refused", age)
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
					s.servers[1].Transport,
				})
				got, err := says(t, way, http.MethodPost, "")
				if again := err == nil && got == "b"; again != c.again || (b.requests.Load() == 1) != c.again {
					t.Errorf("%q answers, error %v, %d requests at b", got, err, b.requests.Load())
				}
				if s.Current() != a.name || len(s.servers[0].check) != 1 {
					t.Errorf("%s is current, %d checks are requested: one request decides", s.Current(), len(s.servers[0].check))
				}
			})
		})
	}
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
		checked(t, "a is left", s.uses(b))
		wantAnswer(t, way, "b")
		a.ready.Store(true)
		checked(t, "a is back", func() bool { return s.usableOf(a) })
		wantAnswer(t, way, "b") // there is no reason to return to a
		b.ready.Store(false)
		checked(t, "b is left", s.uses(a))
		wantAnswer(t, way, "a")
		time.Sleep(2 * unreadyPatience)
		if s.usableOf(b) {
			t.Error("b is not ready, a is, and b may be used")
		}
		a.ready.Store(false)
		checked(t, "b answers reads, and a is not ready either", s.uses(b))
		a.ready.Store(true)
		checked(t, "a is ready", s.uses(a))
	})
}

// Servers that do not respond delay the start by two checks. One that is behind is not used.
func TestBadServersAtTheStart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b, c := newAPIServer(t, "a"), newAPIServer(t, "b"), newAPIServer(t, "c")
		a.stalled.Store(true)
		b.rv.Store(99)
		began := time.Now()
		s, err := openServers(t, a, b, c)
		if took := time.Since(began); err != nil || took > lostAfter*checkTimeout {
			t.Fatalf("the start takes %v, %v", took, err)
		}
		if s.Current() != c.name {
			t.Errorf("%s is used", s.Current())
		}
	})
}

// Feeds doubt a silent server. The other server's checks do not end the doubt before it is used.
func TestAnotherServerEndsNoDoubt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b := newAPIServer(t, "a"), newAPIServer(t, "b")
		s, _ := serversOf(t, a, b)
		a.stalled.Store(true)
		s.Health.Doubt()
		if err := s.Health.Wait(t.Context()); err != nil || s.Current() != b.name {
			t.Errorf("the feeds go on at %s, error %v", s.Current(), err)
		}
	})
}

// The set skips a server that is behind, also at the start and if no other one is left. After a
// while, it takes this for a restore of etcd.
func TestServerThatIsBehind(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b, c := newAPIServer(t, "a"), newAPIServer(t, "b"), newAPIServer(t, "c")
		a.rv.Store(99)
		s, way := serversOf(t, a, b, c)
		wantAnswer(t, way, "b")
		b.stop()
		checked(t, "b is left", s.uses(c))
		c.stop()
		checked(t, "c is left", func() bool { return !s.usableOf(c) })
		for lost := time.Now(); time.Since(lost) < waitBehind-2*checkEvery; time.Sleep(time.Second) {
			if got, err := says(t, way, http.MethodGet, ""); err == nil {
				t.Errorf("%s answered after %s", got, time.Since(lost))
			}
		}
		checked(t, "a is used", s.uses(a))
		wantAnswer(t, way, "a")
		time.Sleep(2 * checkEvery)
		if !s.usableOf(a) {
			t.Error("a is behind what etcd had before its restore, and is left again")
		}
	})
}

// A single server is not compared with what it has shown itself.
func TestSingleServerIsNotBehind(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newAPIServer(t, "a")
		s, _ := serversOf(t, a)
		a.ready.Store(false)
		time.Sleep(2 * unreadyPatience)
		a.rv.Store(50)
		time.Sleep(2 * checkEvery)
		if !s.usableOf(a) {
			t.Error("it counts as lost")
		}
	})
}

// At most eight feeds have a turn at a time, unless turns are too long. While there is a doubt, no
// feed gets a turn.
func TestTurns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		checks := 0
		h := newHealth(func() { checks++ })
		for range turns {
			if _, err := h.Turn(t.Context()); err != nil { // these turns never end
				t.Fatal(err)
			}
		}
		impatient, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err := h.Turn(impatient); err == nil {
			t.Error("a ninth has its turn at once")
		}
		began := time.Now()
		end, err := h.Turn(t.Context())
		if took := time.Since(began); err != nil || took > turnMax {
			t.Errorf("another turn begins after %v, %v", took, err)
		}
		end()
		end()
		h.Doubt()
		began = time.Now()
		time.AfterFunc(time.Minute, func() { h.checked(0, true) }) // it began before the doubt
		time.AfterFunc(time.Hour, func() { h.checked(h.raised(), true) })
		if end, err = h.Turn(t.Context()); err != nil || time.Since(began) != time.Hour {
			t.Errorf("the turn begins %v after the doubt, %v", time.Since(began), err)
		}
		end()
		time.Sleep(2 * turnMax)
		if len(h.slots) > 0 || checks != 1 {
			t.Errorf("%d turns go on, %d checks", len(h.slots), checks)
		}
	})
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

// If a server does not respond at all, or is behind, its streams are cut, so that they resume at
// another server. They stay if no other server is usable. A server is left, and its streams stay, if its
// reads have no answer, and if it refuses the credentials. If it refuses /readyz only, it may have just
// started, or the proxy lacks the right.
func TestServerThatFailsIsLeft(t *testing.T) {
	for _, c := range []struct {
		name  string
		fails func(a, b *apiserver)
		ends  bool // its streams
		again bool // it may be used after a while
	}{
		{"silent", func(a, _ *apiserver) { a.stalled.Store(true) }, true, false},
		{"behind", func(a, _ *apiserver) { a.rv.Store(50) }, true, false},
		{"both silent", func(a, b *apiserver) { a.stalled.Store(true); time.Sleep(4 * time.Second); b.stalled.Store(true) }, false, false},
		{"slow etcd", func(a, _ *apiserver) { a.slow.Store(true) }, false, false},
		{"about to stop", func(a, _ *apiserver) { _ = a.network.Close() }, false, false},
		{"no credentials", func(a, _ *apiserver) { a.refuses.Store(true) }, false, false},
		{"no right to /readyz", func(a, _ *apiserver) { a.hidden.Store(true) }, false, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				a, b := newAPIServer(t, "a"), newAPIServer(t, "b")
				s, way := serversOf(t, a, b)
				resp, err := way.RoundTrip(request(t, http.MethodGet, "/stream"))
				if err != nil {
					t.Fatal(err)
				}
				defer resp.Body.Close()
				var ended atomic.Bool
				var reading sync.WaitGroup
				reading.Go(func() {
					_, _ = resp.Body.Read(make([]byte, 1))
					ended.Store(true)
				})
				c.fails(a, b)
				time.Sleep(lostAfter*(checkEvery+checkTimeout) + time.Second)
				if s.Current() != b.name {
					t.Errorf("%s is used", s.Current())
				}
				time.Sleep(2 * unreadyPatience)
				if ended.Load() != c.ends || s.usableOf(a) != c.again {
					t.Errorf("the stream ended: %t, the server may be used: %t", ended.Load(), s.usableOf(a))
				}
				resp.Body.Close()
				reading.Wait()
			})
		})
	}
}

// A server that is behind for a moment is used as soon as it has caught up. Otherwise the wait for it begins
// when it is behind, even if no server was there before.
func TestServerThatComesBackBehind(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b := newAPIServer(t, "a"), newAPIServer(t, "b")
		s, _ := serversOf(t, a, b)
		b.rv.Store(99)
		checked(t, "b is behind", func() bool { return !s.usableOf(b) })
		a.stop()
		b.rv.Store(100)
		checked(t, "b has caught up", s.uses(b))
		b.ready.Store(false)
		time.Sleep(3 * waitBehind)
		b.rv.Store(99)
		b.ready.Store(true)
		time.Sleep(waitBehind - time.Second)
		if s.usableOf(b) {
			t.Error("it is used at once")
		}
		checked(t, "b is used", s.uses(b))
	})
}
