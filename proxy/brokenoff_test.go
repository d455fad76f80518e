package proxy

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"

	"github.com/watchproxy/watchproxy/proxy/audit"
	"github.com/watchproxy/watchproxy/proxy/metrics"
)

// If upstream dies within the body of a response, the client gets the head. A client whose connection
// ends without a head may send its write again.
func TestHeadOfBrokenResponse(t *testing.T) {
	for _, path := range []string{"/api/v1/namespaces/a/configmaps", "/apis/example.com/v1/namespaces/a/things", "/api/v1/namespaces/a/services/s/proxy/x"} {
		for _, length := range []string{"", "1000", "100000"} {
			synctest.Test(t, func(t *testing.T) {
				_, dial := servePlain(t, forwardsAll{}, behind(t, func(w http.ResponseWriter, r *http.Request) {
					_, _ = io.ReadAll(r.Body)
					if length != "" {
						w.Header().Set("Content-Length", length)
					}
					w.WriteHeader(http.StatusCreated)
					_, _ = io.WriteString(w, `{"kind":`)
					_ = http.NewResponseController(w).Flush()
					time.Sleep(time.Second)
					panic(http.ErrAbortHandler)
				}))
				c := dial()
				send(t, c, "POST "+path+" HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}")
				resp, err := http.ReadResponse(bufio.NewReader(c), nil)
				if err != nil {
					t.Fatalf("%s with a length of %q: %v", path, length, err)
				}
				if _, err := io.Copy(io.Discard, resp.Body); resp.StatusCode != http.StatusCreated || !errors.Is(err, io.ErrUnexpectedEOF) {
					t.Errorf("%s with a length of %q: %s, %v", path, length, resp.Status, err)
				}
			})
		}
	}
}

// drain is the drain time of serveUntil. Requests without a response fail a second later, and the
// connections are cut after another second.
const drain = time.Second

// serveUntil runs a server until stop. Then ended receives the server's error. The auditor may be nil.
func serveUntil(t *testing.T, protocol string, auditor *audit.Auditor, upstream http.HandlerFunc) (client *httpClient, stop func(), ended <-chan error) {
	t.Helper()
	forwards, err := forwarderTo(behind(t, upstream), nil)
	if err != nil {
		t.Fatal(err)
	}
	o := testOptions()
	o.Drain, o.Audit = drain, auditor
	l := newRawListener()
	s := NewServer(Parts{forwardsAll{}, forwards, newStore(t, 1<<20), metrics.New(prometheus.NewRegistry()), zap.NewNop()}, o)
	ctx, stop := context.WithCancel(t.Context())
	served := make(chan error, 1)
	go func() { served <- s.Serve(ctx, l) }()
	return clientTo(t, l, protocol), stop, served
}

// A server that stops answers the requests whose responses have not begun. If it only ended the
// connections, clients could send their writes again. The client of a response that has begun gets
// what has arrived.
func TestStopAnswers(t *testing.T) {
	for _, protocol := range []string{"http/1.1", "h2"} {
		for _, test := range []struct {
			method, path string
			status       int
			again        bool
		}{
			{"POST", "/api/v1/namespaces/a/configmaps", http.StatusGatewayTimeout, false},
			{"DELETE", "/api/v1/namespaces/a/configmaps/c", http.StatusGatewayTimeout, false},
			{"POST", "/api/v1/namespaces/a/services/s/proxy/x", http.StatusGatewayTimeout, false},
			{"GET", "/api/v1/namespaces/a/configmaps/c", http.StatusServiceUnavailable, true},
			{"GET", "/api/v1/namespaces/a/configmaps?watch=1", http.StatusServiceUnavailable, true},
			{"POST", "/api/v1/namespaces/a/configmaps?begins", http.StatusCreated, false},
		} {
			synctest.Test(t, func(t *testing.T) {
				var executed atomic.Int64
				begins := strings.HasSuffix(test.path, "begins")
				client, stop, ended := serveUntil(t, protocol, nil, func(w http.ResponseWriter, r *http.Request) {
					_, _ = io.ReadAll(r.Body)
					executed.Add(1)
					if begins {
						w.WriteHeader(http.StatusCreated)
						_, _ = io.WriteString(w, `{"kind":`)
						_ = http.NewResponseController(w).Flush()
					}
					<-r.Context().Done()
				})
				time.AfterFunc(time.Minute, stop)
				req, err := http.NewRequestWithContext(t.Context(), test.method, client.url+test.path, strings.NewReader("{}"))
				if test.method == http.MethodGet {
					req, err = http.NewRequestWithContext(t.Context(), test.method, client.url+test.path, http.NoBody)
				}
				if err != nil {
					t.Fatal(err)
				}
				req.Header.Set("Content-Type", "application/json")
				resp, err := client.RoundTrip(req)
				if err != nil {
					t.Fatalf("%s of %s over %s: %v", test.method, test.path, protocol, err)
				}
				if body, err := io.ReadAll(resp.Body); begins != (err != nil) || begins && string(body) != `{"kind":` {
					t.Errorf("%s of %s over %s: %q, %v", test.method, test.path, protocol, body, err)
				}
				_ = resp.Body.Close()
				if again := resp.Header.Get("Retry-After") != ""; resp.StatusCode != test.status || again != test.again || executed.Load() != 1 {
					t.Errorf("%s of %s over %s: %s, may be sent again: %t, executed %d times", test.method, test.path, protocol, resp.Status, again, executed.Load())
				}
				if err := <-ended; err != nil {
					t.Error(err)
				}
			})
		}
	}
}

// Writes that wait for a slot while the server stops are not sent.
func TestStopSendsNothing(t *testing.T) {
	for _, protocol := range []string{"http/1.1", "h2"} {
		synctest.Test(t, func(t *testing.T) {
			var executed atomic.Int64
			client, stop, ended := serveUntil(t, protocol, nil, func(_ http.ResponseWriter, r *http.Request) {
				_, _ = io.ReadAll(r.Body)
				executed.Add(1)
				<-r.Context().Done()
			})
			writes := int64(testLimits().Forwards + 20)
			var all sync.WaitGroup
			var again, ambiguous atomic.Int64
			for range writes {
				all.Go(func() {
					code, err := client.send(t.Context(), "", http.MethodPost, "/api/v1/namespaces/a/configmaps", strings.NewReader("{}"))
					switch {
					case err != nil:
						t.Error(err)
					case code == http.StatusServiceUnavailable:
						again.Add(1)
					case code == http.StatusGatewayTimeout:
						ambiguous.Add(1)
					}
				})
			}
			synctest.Wait()
			sent := executed.Load()
			stop()
			all.Wait()
			if err := <-ended; err != nil {
				t.Error(err)
			}
			if sent != int64(testLimits().Forwards) || executed.Load() != sent || ambiguous.Load() != sent || again.Load() != writes-sent {
				t.Errorf("%s: of %d writes, %d were sent before the stop and %d later; %d got 504, %d got 503", protocol, writes, sent, executed.Load()-sent, ambiguous.Load(), again.Load())
			}
		})
	}
}

// A response that has begun may end before its connection is cut, also if upstream must audit it.
func TestStopLetsResponsesEnd(t *testing.T) {
	for _, protocol := range []string{"http/1.1", "h2"} {
		for _, level := range []string{"None", "RequestResponse"} {
			synctest.Test(t, func(t *testing.T) {
				auditor, _ := auditing(t, "- level: "+level+"\n", true)
				client, stop, ended := serveUntil(t, protocol, auditor, func(w http.ResponseWriter, _ *http.Request) {
					_, _ = io.WriteString(w, "beginning")
					_ = http.NewResponseController(w).Flush()
					time.Sleep(drain + 3*time.Second/2) // between the two
					_, _ = io.WriteString(w, " and end")
				})
				resp := client.open(t, "/apis/example.com/v1/things")
				stop()
				if body, err := io.ReadAll(resp.Body); err != nil || string(body) != "beginning and end" {
					t.Errorf("%s, audited at %s: %q, %v", protocol, level, body, err)
				}
				_ = resp.Body.Close()
				if err := <-ended; err != nil {
					t.Error(err)
				}
			})
		}
	}
}

// Readers that wait for the same response share its failure, too. Each of them would otherwise send
// its own request to an upstream that has just failed.
func TestReadersShareAFailure(t *testing.T) {
	const readers, configmap = 20, "/api/v1/namespaces/a/configmaps/c"
	const broken, late = "503 no complete answer", "504 did not answer in time"
	silent := func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }
	for name, test := range map[string]struct {
		path string
		fail http.HandlerFunc
		full bool // no memory is free
		want string
	}{
		"breaks off": {configmap, breakAfter(100), false, broken},
		"later":      {configmap, breakAfter(200 << 10), false, broken},
		"is silent":  {configmap, silent, false, late},
		"no room":    {configmap, silent, true, late},
		"a document": {"/openapi/v3/apis/example.com/v1", func(w http.ResponseWriter, _ *http.Request) {
			http.Error(w, "no complete answer", http.StatusServiceUnavailable)
		}, false, broken},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var asked atomic.Int64
				forwards, err := forwarderTo(behind(t, func(w http.ResponseWriter, r *http.Request) {
					if asked.Add(1) > 1 {
						test.fail(w, r)
						return
					}
					time.Sleep(time.Second)
				}), func(way http.RoundTripper) http.RoundTripper { return reticent{way} })
				if err != nil {
					t.Fatal(err)
				}
				l := newRawListener()
				o := testOptions()
				o.Memory = 64 << 20
				s := serveThrough(t, l, forwardsAll{}, forwards, o, prometheus.NewRegistry(), zap.NewNop())
				if test.full {
					if !s.limits.queues.memory.Try("another", o.Memory-(4<<20)) { // leaves room for requests
						t.Fatal("no room")
					}
					defer s.limits.queues.memory.Give("another", o.Memory-(4<<20))
				}
				held := usersHold(s)
				client := clientTo(t, l, "h2")
				var all sync.WaitGroup
				var failed atomic.Int64
				for range readers {
					all.Go(func() {
						resp, body := client.get(t, test.path)
						if code, message, _ := strings.Cut(test.want, " "); strings.HasPrefix(resp.Status, code) && strings.Contains(body, message) {
							failed.Add(1)
						}
					})
				}
				all.Wait()
				synctest.Wait()
				if n := asked.Load(); n > readers/3 || failed.Load() < readers-1 {
					t.Errorf("%d requests, %d of %d readers got %s", n, failed.Load(), readers, test.want)
				}
				if n := usersHold(s) - held + s.limits.queues.forwards.Taken(); n != 0 {
					t.Errorf("%d bytes and slots are held", n)
				}
			})
		})
	}
}

// reticent is a transport that does not tell why a request was cancelled, as over HTTP/2.
type reticent struct{ http.RoundTripper }

// RoundTrip implements http.RoundTripper.
func (r reticent) RoundTrip(req *http.Request) (*http.Response, error) {
	resp, err := r.RoundTripper.RoundTrip(req)
	if req.Context().Err() != nil {
		err = req.Context().Err()
	}
	return resp, err
}

// breakAfter returns an upstream that breaks off within a response.
func breakAfter(n int) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		_, _ = w.Write(make([]byte, n))
		_ = http.NewResponseController(w).Flush()
		time.Sleep(time.Second)
		panic(http.ErrAbortHandler)
	}
}
