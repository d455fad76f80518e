package proxy

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/watchproxy/watchproxy/proxy/exchange"
	"github.com/watchproxy/watchproxy/proxy/metrics"
)

func TestAccessLog(t *testing.T) {
	for sampling, want := range map[float64][2]int{0: {0, 0}, 0.5: {400, 600}, 1: {1000, 1000}} {
		core, lines := observer.New(zap.InfoLevel)
		s := &Server{metrics: metrics.New(prometheus.NewRegistry()), log: zap.New(core)}
		s.options.Store(&Options{AccessLog: sampling})
		req := &exchange.Request{Method: http.MethodGet, Path: "/api/v1/pods", Query: "labelSelector=secret", Header: http.Header{"User-Agent": {"test"}}}
		resp := exchange.NewResponse(http.StatusOK, exchange.FromCache)
		resp.Header.Set("Audit-Id", "of the client")
		for range 1000 {
			s.Answered(req, exchange.ParseRoute(http.MethodGet, req.Path), resp, time.Second)
		}
		if n := lines.Len(); n < want[0] || n > want[1] {
			t.Errorf("%d of 1000 were logged, %v of them should be", n, sampling)
		}
		for _, line := range lines.All() {
			of := line.ContextMap()
			if of["verb"] != "list" || of["path"] != "/api/v1/pods" || of["code"] != int64(200) || of["source"] != "cache" ||
				of["auditID"] != "of the client" || of["userAgent"] != "test" || strings.Contains(line.Message, "secret") {
				t.Fatalf("%v", of)
			}
		}
	}
}

// A client can choose texts of a log line, but cannot make them long.
func TestAccessLogIsShort(t *testing.T) {
	core, lines := observer.New(zap.InfoLevel)
	s := &Server{metrics: metrics.New(prometheus.NewRegistry()), log: zap.New(core)}
	s.options.Store(&Options{AccessLog: 1})
	long := strings.Repeat("x", 60<<10)
	req := &exchange.Request{Method: http.MethodGet, Path: "/api/v1/" + long, Header: http.Header{"User-Agent": {long}}}
	resp := exchange.NewResponse(http.StatusNotFound, exchange.FromUpstream)
	resp.Header.Set("Audit-Id", long)
	s.Answered(req, exchange.ParseRoute(http.MethodGet, req.Path), resp, time.Second)
	const most = 2 << 10
	if line := fmt.Sprint(lines.All()[0].ContextMap()); len(line) > most {
		t.Errorf("a line has %d bytes", len(line))
	}
}
