package proxy

import (
	"context"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"

	collector "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	"google.golang.org/grpc"
	tracingapi "k8s.io/component-base/tracing/api/v1"

	"github.com/watchproxy/watchproxy/proxy/trace"
)

// collected are the names of the spans that a collector has received.
type collected struct {
	collector.UnimplementedTraceServiceServer
	mu struct {
		sync.Mutex
		names []string
	}
}

// Export implements collector.TraceServiceServer.
func (c *collected) Export(_ context.Context, sent *collector.ExportTraceServiceRequest) (*collector.ExportTraceServiceResponse, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, resource := range sent.GetResourceSpans() {
		for _, scope := range resource.GetScopeSpans() {
			for _, span := range scope.GetSpans() {
				c.mu.names = append(c.mu.names, span.GetName())
			}
		}
	}
	return &collector.ExportTraceServiceResponse{}, nil
}

// Clients cannot prevent spans from reaching the collector: not by invalid UTF-8, not by long
// names, and not by a request that panics.
func TestSpansOfOddRequests(t *testing.T) {
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	got, server := &collected{}, grpc.NewServer()
	collector.RegisterTraceServiceServer(server, got)
	var running sync.WaitGroup
	running.Go(func() { _ = server.Serve(l) })
	defer running.Wait()
	defer server.Stop()
	endpoint, always := l.Addr().String(), int32(1_000_000)
	tracer, err := trace.New(t.Context(), &tracingapi.TracingConfiguration{Endpoint: &endpoint, SamplingRatePerMillion: &always}, "v1")
	if err != nil {
		t.Fatal(err)
	}
	feeds := oneFeed{opening: func(context.Context) { panic("a bug") }}
	options := testOptions()
	options.Tracer = tracer
	_, address := serveTo(t, feeds, func(http.ResponseWriter, *http.Request) {}, options)
	client := clientTo(t, address, "h2")
	for _, path := range []string{"/api/v1/%ff", "/version", "/api/v1/" + strings.Repeat("x", 30<<10), "/api/v1/pods?resourceVersion=0"} {
		client.get(t, path, "Audit-Id", "\xff")
	}
	closing, cancel := context.WithTimeout(t.Context(), testWait)
	defer cancel()
	if err := tracer.Close(closing); err != nil {
		t.Error(err)
	}
	got.mu.Lock()
	defer got.mu.Unlock()
	roots := map[string]bool{}
	for _, name := range got.mu.names {
		if strings.HasPrefix(name, http.MethodGet) {
			roots[name] = true
		}
		if len(name) > 1<<10 {
			t.Errorf("a span has a name of %d bytes", len(name))
		}
	}
	if len(roots) != 4 || !roots["GET /api/v1/pods"] {
		t.Errorf("the collector got %d spans, with requests of %d kinds", len(got.mu.names), len(roots))
	}
}
