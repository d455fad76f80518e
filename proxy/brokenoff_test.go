package proxy

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"

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

// The head and each piece of a response arrive at once.
func TestPiecesOfResponse(t *testing.T) {
	for _, protocol := range []string{"h2", "http/1.1"} {
		for _, length := range []string{"", "300"} {
			synctest.Test(t, func(t *testing.T) {
				_, l := serveTo(t, forwardsAll{}, func(w http.ResponseWriter, _ *http.Request) {
					if length != "" {
						w.Header().Set("Content-Length", length)
					}
					for range 3 {
						_ = http.NewResponseController(w).Flush()
						time.Sleep(time.Second)
						_, _ = w.Write(make([]byte, 100))
					}
				}, testOptions())
				began := time.Now()
				resp := clientTo(t, l, protocol).open(t, "/api/v1/namespaces/a/services/s/proxy/progress")
				defer resp.Body.Close()
				for piece := range 4 {
					if took, want := time.Since(began), time.Duration(piece)*time.Second; took != want {
						t.Errorf("%s with a length of %q: piece %d has arrived after %s, want %s", protocol, length, piece, took, want)
					}
					if _, err := io.CopyN(io.Discard, resp.Body, 100); (err != nil) != (piece == 3) {
						t.Error(err)
					}
				}
			})
		}
	}
}

// drain is the drain time of serveUntil. Requests without a response fail a second later, and the
// connections are cut after another second.
const drain = time.Second

// serveUntil runs a server until stop. Then ended receives the server's error.
func serveUntil(t *testing.T, protocol string, upstream http.HandlerFunc) (client *httpClient, stop func(), ended <-chan error) {
	t.Helper()
	forwards, err := forwarderTo(behind(t, upstream), nil)
	if err != nil {
		t.Fatal(err)
	}
	o := testOptions()
	o.Drain = drain
	l := newRawListener()
	s := NewServer(forwardsAll{}, forwards, newStore(t, 1<<20), o, metrics.New(prometheus.NewRegistry()), zap.NewNop())
	ctx, stop := context.WithCancel(t.Context())
	served := make(chan error, 1)
	go func() { served <- s.Serve(ctx, l) }()
	return clientTo(t, l, protocol), stop, served
}

// A server that stops answers the requests whose responses have not begun. If it only ended the
// connections, clients could send their writes again.
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
		} {
			synctest.Test(t, func(t *testing.T) {
				var executed atomic.Int64
				client, stop, ended := serveUntil(t, protocol, func(_ http.ResponseWriter, r *http.Request) {
					_, _ = io.ReadAll(r.Body)
					executed.Add(1)
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
				_, _ = io.Copy(io.Discard, resp.Body)
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

// A response that has begun may end before its connection is cut.
func TestStopLetsResponsesEnd(t *testing.T) {
	for _, protocol := range []string{"http/1.1", "h2"} {
		synctest.Test(t, func(t *testing.T) {
			client, stop, ended := serveUntil(t, protocol, func(w http.ResponseWriter, _ *http.Request) {
				_, _ = io.WriteString(w, "beginning")
				_ = http.NewResponseController(w).Flush()
				time.Sleep(drain + 3*time.Second/2) // between the two
				_, _ = io.WriteString(w, " and end")
			})
			resp := client.open(t, "/apis/example.com/v1/things")
			stop()
			if body, err := io.ReadAll(resp.Body); err != nil || string(body) != "beginning and end" {
				t.Errorf("%s: %q, %v", protocol, body, err)
			}
			_ = resp.Body.Close()
			if err := <-ended; err != nil {
				t.Error(err)
			}
		})
	}
}
