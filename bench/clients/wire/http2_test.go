package wire

import (
	"bufio"
	"context"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/watchproxy/watchproxy/bench/cluster"
)

// http2Client uses HTTP/2 with a proxy and keeps its connections.
type http2Client struct {
	*http.Client
	url   string
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
	cluster.MustT(t, err)
	resp, err := c.Do(req)
	cluster.MustT(t, err)
	t.Cleanup(func() { resp.Body.Close() })
	if resp.StatusCode != http.StatusOK || resp.ProtoMajor != 2 {
		t.Fatalf("%s: %s over %s", target, resp.Status, resp.Proto)
	}
	return resp
}

// Hundreds of watches share one connection, and cost upstream a single watch and at most one list:
// the probe, which matches nothing. A client can end each watch separately. When the connection
// breaks, the proxy counts none of them any more. The watch upstream ends with the proxy.
func TestManyWatchesOnOneConnection(t *testing.T) {
	w := sharedWorld(t)
	p := w.FreshProxy(t, "cache: {consistentReads: {ledger: false}}\n") // the ledger's watches would stay open for a minute
	c := newHTTP2Client(t, p)
	ns := w.Namespace(t, "multiplexed")
	upstream := func() (open, lists float64) {
		m, pods := w.API.MetricsT(t), cluster.Label("resource", "pods")
		return m.Sum("apiserver_longrunning_requests", pods, `verb="WATCH"`), m.Sum("apiserver_request_total", pods, `verb="LIST"`)
	}
	before, listed := upstream()
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
		resp := c.open(t, own, "/api/v1/namespaces/"+ns+"/pods?watch=true&resourceVersion=0")
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
	if n := len(c.conns); n != 1 {
		t.Errorf("%d watches use %d connections", watches, n)
	}
	w.CreatePod(t, ns, cluster.NewPod("one"))
	cluster.Eventually(t, "each sees the pod", func() bool { return seen.Load() == watches })
	if now, lists := upstream(); now != before+1 || lists > listed+1 {
		t.Errorf("upstream has %v watches open after %v, and %v lists after %v", now, before, lists, listed)
	}
	leave()
	open := func() float64 { return p.MetricsT(t).Sum("watchproxy_watches") }
	cluster.Eventually(t, "two thirds are closed", func() bool { return open() == watches/3 })
	w.CreatePod(t, ns, cluster.NewPod("two"))
	cluster.Eventually(t, "the others go on", func() bool { return seen.Load() == watches+watches/3 })

	c.conns[0].Close()
	cluster.Eventually(t, "no watch is left", func() bool { return open() == 0 })
	cluster.Eventually(t, "the client knows", func() bool { return ended.Load() == watches })
	if err := p.Stop(); err != nil {
		t.Error(err)
	}
	cluster.Eventually(t, "the watch upstream ends with the proxy", func() bool {
		now, _ := upstream()
		return now == before
	})
}
