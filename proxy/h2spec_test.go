//go:build verify

package proxy

import (
	"context"
	"io"
	"net"
	"net/http"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"

	"github.com/watchproxy/watchproxy/proxy/exchange"
	"github.com/watchproxy/watchproxy/proxy/metrics"
)

// The server passes all cases of h2spec for RFC 9113 and RFC 7541, including the strict cases.
func TestH2Spec(t *testing.T) {
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	options := Options{Fixed: Fixed{AnyHost: true, TLS: selfSigned()}, Limits: testLimits()}
	s := NewServer(Parts{forwardsAll{}, nil, newStore(t, 1<<20), metrics.New(prometheus.NewRegistry()), zap.NewNop()}, options)
	s.listening = s.listen(welcoming{})
	ctx, cancel := context.WithCancel(t.Context())
	var serving sync.WaitGroup
	serving.Go(func() { _ = s.Serve(ctx, l) })
	defer serving.Wait()
	defer cancel()
	host, port, err := net.SplitHostPort(l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	tools := filepath.Join("..", ".tools", "go.mod")
	out, err := exec.CommandContext(t.Context(), "go", "tool", "-modfile="+tools, "h2spec",
		"--tls", "--insecure", "--strict", "--host", host, "--port", port, "--path", "/version").CombinedOutput()
	if err != nil || !strings.Contains(string(out), " 0 skipped, 0 failed") {
		t.Errorf("%v\n%s", err, out)
	}
}

// welcoming answers all requests. The proxy refuses h2spec's POSTs, because they have no Content-Type,
// and ends their connections with GOAWAY, which can overtake an expected frame.
type welcoming struct{}

// Handle implements exchange.Handler.
func (welcoming) Handle(_ context.Context, req *exchange.Request) *exchange.Response {
	req.Conn.HoldAs("", func() (giveBack func(), ok bool) { return func() {}, true })
	if req.Body != nil {
		_, _ = io.Copy(io.Discard, req.Body)
	}
	resp := exchange.NewResponse(http.StatusOK, exchange.FromProxy)
	resp.Body = exchange.Bytes("h2spec wants an answer of more than a few bytes")
	return resp
}

// Refused implements exchange.Handler.
func (welcoming) Refused(*exchange.Request, *exchange.Response) {}
