package proxy

import (
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"
)

func TestAccessLog(t *testing.T) {
	for sampling, want := range map[float64][2]int{0: {0, 0}, 0.5: {400, 600}, 1: {1000, 1000}} {
		core, lines := observer.New(zap.InfoLevel)
		s := &Server{metrics: NewMetrics(prometheus.NewRegistry()), log: zap.New(core)}
		s.options.Store(&Options{AccessLog: sampling})
		req := &request{method: http.MethodGet, path: "/api/v1/pods", query: "labelSelector=secret", header: http.Header{"User-Agent": {"test"}}}
		resp := newResponse(http.StatusOK, fromCache)
		resp.header.Set("Audit-Id", "of the client")
		for range 1000 {
			s.answered(req, parseRoute(http.MethodGet, req.path), resp, time.Second)
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
