package access

import (
	"context"
	"encoding/hex"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"

	collector "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	tracev1 "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/grpc"

	"github.com/watchproxy/watchproxy/bench/cluster"
)

// spans is an OpenTelemetry collector.
type spans struct {
	collector.UnimplementedTraceServiceServer
	address string
	mu      struct {
		sync.Mutex
		byTrace map[string][]span
	}
}

// span is a span with the service that sent it.
type span struct {
	*tracev1.Span
	service string
}

// collect starts a collector that ends with the test.
func collect(tb testing.TB) *spans {
	tb.Helper()
	l, err := (&net.ListenConfig{}).Listen(tb.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		tb.Fatal(err)
	}
	s := &spans{address: l.Addr().String()}
	s.mu.byTrace = map[string][]span{}
	server := grpc.NewServer()
	collector.RegisterTraceServiceServer(server, s)
	var running sync.WaitGroup
	running.Go(func() { _ = server.Serve(l) })
	tb.Cleanup(func() {
		server.Stop()
		running.Wait()
	})
	return s
}

// Export implements collector.TraceServiceServer.
func (s *spans) Export(_ context.Context, sent *collector.ExportTraceServiceRequest) (*collector.ExportTraceServiceResponse, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, resource := range sent.GetResourceSpans() {
		service := ""
		for _, a := range resource.GetResource().GetAttributes() {
			if a.GetKey() == "service.name" {
				service = a.GetValue().GetStringValue()
			}
		}
		for _, scope := range resource.GetScopeSpans() {
			for _, one := range scope.GetSpans() {
				id := hex.EncodeToString(one.GetTraceId())
				s.mu.byTrace[id] = append(s.mu.byTrace[id], span{one, service})
			}
		}
	}
	return &collector.ExportTraceServiceResponse{}, nil
}

// of returns the spans of a trace so far.
func (s *spans) of(trace string) []span {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]span(nil), s.mu.byTrace[trace]...)
}

// path returns the names of a span and of those around it, the outermost first. It begins with the
// client if the outermost span's parent is the client's.
func path(all []span, s span, client string) string {
	name := s.GetName()
	if s.service == "apiserver" {
		name = "apiserver: " + name
	}
	parent := hex.EncodeToString(s.GetParentSpanId())
	if parent == client {
		return "client > " + name
	}
	for _, around := range all {
		if hex.EncodeToString(around.GetSpanId()) == parent {
			return path(all, around, client) + " > " + name
		}
	}
	return "? > " + name
}

// A client's trace goes through the proxy into the apiserver. The spans of the proxy have the right
// parents. Only privileged clients decide whether their requests are traced.
func TestTraces(t *testing.T) {
	t.Parallel()
	w := sharedWorld(t)
	s := w.spans
	f := w.front(t, proxyUser, "tracing: {endpoint: '"+s.address+"'}\n")
	f.warm(t, w.callers["admin"], collections())
	const (
		pods   = "/api/v1/namespaces/" + teamA + "/pods"
		client = "b7ad6b7169203331"
		list   = "client > GET /api/v1/namespaces/{:namespace}/pods"
		get    = list + "/{:name}"
	)
	trace := 0
	ask := func(name, target string) (id string) {
		trace++
		id = strings.Repeat("0", 30) + hex.EncodeToString([]byte{byte(trace)})
		header := http.Header{"Traceparent": {"00-" + id + "-" + client + "-01"}}
		if a := f.must(t, w.callers[name], request{target: target, header: header}); a.status != ok {
			t.Fatalf("%s: %d %s", target, a.status, a.body)
		}
		return id
	}
	silent := ask("reader", pods+"/one")
	for target, want := range map[string][]string{
		pods + "?resourceVersion=0": {list, list + " > authenticate", list + " > cache", list + " > cache > authorize", list + " > cache > freshness"},
		pods:                        {list, list + " > cache > freshness"},
		pods + "/one/status": {
			get + "/status", get + "/status > cache", get + "/status > forward", get + "/status > forward > upstream",
			get + "/status > forward > upstream > apiserver: GET /api/v1/namespaces/{:namespace}/pods/{:name}/status",
		},
	} {
		id := ask("admin", target)
		var paths map[string]bool
		cluster.Eventually(t, "the spans of "+target, func() bool {
			all := s.of(id)
			paths = map[string]bool{}
			for _, one := range all {
				paths[path(all, one, client)] = true
			}
			for _, p := range want {
				if !paths[p] {
					return false
				}
			}
			return true
		})
		for p := range paths {
			if strings.HasPrefix(p, "?") {
				t.Errorf("%s: a span has no parent: %s", target, p)
			}
			if strings.Contains(p, "apiserver") && !strings.Contains(p, "> forward > upstream > apiserver: GET") {
				t.Errorf("%s: the apiserver's span is at the wrong place: %s", target, p)
			}
		}
	}
	if all := s.of(silent); len(all) > 0 { // it was asked first
		t.Errorf("a client without privileges has %d spans", len(all))
	}
}
