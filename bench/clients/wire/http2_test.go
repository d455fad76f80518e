package wire

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/watchproxy/watchproxy/bench/cluster"
)

// http2Client uses HTTP/2 with a proxy and counts its connections.
type http2Client struct {
	*http.Client
	url   string
	dials atomic.Int64
	mu    sync.Mutex
	conns []net.Conn
}

func newHTTP2Client(t *testing.T, p *cluster.Proxy) *http2Client {
	t.Helper()
	c := &http2Client{url: p.URL}
	var protocols http.Protocols
	protocols.SetHTTP2(true)
	transport := &http.Transport{
		TLSClientConfig: cluster.Trust(p.CA),
		Protocols:       &protocols,
		DialContext: func(ctx context.Context, network, address string) (net.Conn, error) {
			conn, err := (&net.Dialer{}).DialContext(ctx, network, address)
			c.mu.Lock()
			defer c.mu.Unlock()
			c.conns = append(c.conns, conn)
			c.dials.Add(1)
			return conn, err
		},
	}
	c.Client = &http.Client{Transport: transport}
	t.Cleanup(transport.CloseIdleConnections)
	return c
}

// open sends a request. The answer must be 200 over HTTP/2.
func (c *http2Client) open(t *testing.T, ctx context.Context, target string) *http.Response {
	t.Helper()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, c.url+target, nil)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := c.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { resp.Body.Close() })
	if resp.StatusCode != http.StatusOK || resp.ProtoMajor != 2 {
		t.Fatalf("%s: %s over %s", target, resp.Status, resp.Proto)
	}
	return resp
}

// Hundreds of watches share one connection. A client can end each watch separately. When the
// connection breaks, the proxy counts none of them any more.
func TestManyWatchesOnOneConnection(t *testing.T) {
	w := sharedWorld(t)
	p := w.FreshProxy(t, "cache: {consistentReads: {ledger: false}}\n") // the ledger's watches would stay open for a minute
	c := newHTTP2Client(t, p)
	ns := w.Namespace(t, "multiplexed")
	c.open(t, t.Context(), "/api/v1/namespaces/"+ns+"/pods?resourceVersion=0").Body.Close()

	const watches = 300
	ctx, leave := context.WithCancel(t.Context())
	var seen, ended atomic.Int64
	var readers sync.WaitGroup
	t.Cleanup(readers.Wait)
	t.Cleanup(leave)
	for i := range watches {
		own := ctx
		if i%3 == 0 { // these watches stay open until the connection breaks
			own = t.Context()
		}
		resp := c.open(t, own, "/api/v1/namespaces/"+ns+"/pods?watch=true&sendInitialEvents=false&resourceVersionMatch=NotOlderThan")
		readers.Go(func() {
			defer ended.Add(1)
			for lines := bufio.NewReader(resp.Body); ; {
				line, err := lines.ReadString('\n')
				if err != nil {
					return
				}
				if strings.HasPrefix(line, `{"type":"ADDED"`) {
					seen.Add(1)
				}
			}
		})
	}
	if n := c.dials.Load(); n != 1 {
		t.Errorf("%d watches use %d connections", watches, n)
	}
	w.CreatePod(t, ns, cluster.NewPod("one"))
	cluster.Eventually(t, "each sees the pod", func() bool { return seen.Load() == watches })
	leave()
	open := func() float64 { return p.MetricsT(t).Sum("watchproxy_watches") }
	cluster.Eventually(t, "two thirds are closed", func() bool { return open() == watches/3 })
	w.CreatePod(t, ns, cluster.NewPod("two"))
	cluster.Eventually(t, "the others go on", func() bool { return seen.Load() == watches+watches/3 })

	c.conns[0].Close()
	cluster.Eventually(t, "no watch is left", func() bool { return open() == 0 })
	cluster.Eventually(t, "the client knows", func() bool { return ended.Load() == watches })
}

// If upstream breaks off an answer, the proxy does not pass it on as complete, with or without a
// Content-Length.
func TestBrokenAnswerOverHTTP2(t *testing.T) {
	upstream := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/version" {
			return
		}
		if r.URL.Query().Has("length") {
			rw.Header().Set("Content-Length", "100000")
		}
		io.WriteString(rw, strings.Repeat("half", 10_000))
		http.NewResponseController(rw).Flush()
		panic(http.ErrAbortHandler)
	}))
	t.Cleanup(upstream.Close)
	p := cluster.ProxyT(t, cluster.ProxyOptions{Kubeconfig: cluster.KubeconfigT(t, upstream.URL, nil, ""), TLS: true})
	c := newHTTP2Client(t, p)
	for _, target := range []string{"/openapi/v2", "/openapi/v2?length"} {
		if body, err := io.ReadAll(c.open(t, t.Context(), target).Body); err == nil {
			t.Errorf("%s: %d bytes are passed on as the whole", target, len(body))
		}
	}
}

// Over HTTP/2, forwarded requests and their answers carry bodies.
func TestForwardOverHTTP2(t *testing.T) {
	w := sharedWorld(t)
	p := w.FreshProxy(t, "")
	c := newHTTP2Client(t, p)
	ns := w.Namespace(t, "over-http2")
	large := strings.Repeat("x", 900<<10)
	resp, err := c.Post(p.URL+"/api/v1/namespaces/"+ns+"/configmaps", "application/json",
		strings.NewReader(`{"kind":"ConfigMap","apiVersion":"v1","metadata":{"name":"large"},"data":{"k":"`+large+`"}}`))
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	if resp.StatusCode != http.StatusCreated {
		t.Fatalf("create: %s", resp.Status)
	}
	for _, target := range []string{"", "?resourceVersion=0"} {
		body, err := io.ReadAll(c.open(t, t.Context(), "/api/v1/namespaces/"+ns+"/configmaps/large"+target).Body)
		if err != nil || !strings.Contains(string(body), large) {
			t.Errorf("%q: %d bytes, %v", target, len(body), err)
		}
	}
	forwarded := c.open(t, t.Context(), "/api/v1/namespaces/"+ns+"/configmaps?watch=true&resourceVersion=0&unknown=1")
	if line, err := bufio.NewReader(forwarded.Body).ReadString('\n'); err != nil || !strings.Contains(line, "large") {
		t.Errorf("a forwarded watch: %.80q, %v", line, err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, p.URL+"/api/v1/namespaces/"+ns+"/configmaps", io.MultiReader(strings.NewReader("{"), &stuck{ctx, cancel}))
	if err != nil {
		t.Fatal(err)
	}
	if resp, err := c.Do(req); !errors.Is(err, context.Canceled) {
		t.Errorf("a request that was given up: %v, %v", resp, err)
	}
	cluster.Eventually(t, "nothing is in flight but the watch", func() bool {
		return p.MetricsT(t).Sum("watchproxy_forwards_in_flight") == 1
	})
}

// stuck is a request body that ends its request.
type stuck struct {
	context.Context
	cancel context.CancelFunc
}

// Read implements io.Reader.
func (s *stuck) Read([]byte) (int, error) {
	s.cancel()
	return 0, s.Err()
}
