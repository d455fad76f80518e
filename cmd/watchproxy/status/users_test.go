package status

import (
	"encoding/json"
	"math"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/watchproxy/watchproxy/proxy/metrics"
)

// The command prints the users with the highest usage. If the proxy does not return them, the
// command prints the reason.
func TestStatusNamesUsers(t *testing.T) {
	report := metrics.UserReport{
		Minutes: 5, OthersCount: 1234, Others: metrics.User{Requests: 7},
		Users: []metrics.User{
			{Name: "system:serviceaccount:team:agent", Requests: 4321, Limited: 2, Connections: 3, Watches: 40, ProcessorSeconds: 12.34, Waits: metrics.Waits{Processors: 1.5, Upstream: 0.02}},
			{Name: "evil\x1b[2J\nuser"},
			{},
		},
	}
	answer := func(w http.ResponseWriter) { json.NewEncoder(w).Encode(report) }
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/users" {
			answer(w)
			return
		}
		json.NewEncoder(w).Encode(statusOf(t, prometheus.NewRegistry()))
	}))
	t.Cleanup(s.Close)
	t.Cleanup(http.DefaultClient.CloseIdleConnections)
	text := func() string {
		var out strings.Builder
		if err := execute(t.Context(), &out, "--admin", s.URL); err != nil {
			t.Fatal(err)
		}
		return out.String()
	}
	got := text()
	for _, line := range []string{
		"\nUSER, LAST 5 MIN                  REQUESTS  REFUSED 429  CONNECTIONS  WATCHES  PROCESSOR  WAITED: PROCESSOR  UPSTREAM  MEMORY\n",
		"\nsystem:serviceaccount:team:agent  4,321     2            3            40       12.3 s     1.5 s              20.0 ms   0\n",
		"\n\"evil\\x1b[2J\\nuser\"  ", "\n(not authenticated)  ", "\n(1,234 others)                    7   ",
	} {
		if !strings.Contains(got, line) {
			t.Errorf("no %q in\n%s", line, got)
		}
	}
	var out strings.Builder
	if err := execute(t.Context(), &out, "--admin", s.URL, "-o", "json"); err != nil {
		t.Fatal(err)
	}
	var read Status
	if err := json.Unmarshal([]byte(out.String()), &read); err != nil || read.Users == nil || len(read.Users.Users) != 3 || read.Users.Users[0] != report.Users[0] {
		t.Errorf("%v: %s", err, &out)
	}

	answer = func(w http.ResponseWriter) { http.Error(w, "403: only on loopback", http.StatusForbidden) }
	if got := text(); !strings.Contains(got, "\nusers are not shown: 403: only on loopback\n") || strings.Contains(got, "agent") {
		t.Error(got)
	}
	answer = func(w http.ResponseWriter) { http.NotFound(w, nil) }
	if got := text(); !strings.Contains(got, "\nusers are not shown: this proxy is of a version") {
		t.Error(got)
	}
}

// Failures are counted by kind. Latencies are of responses except watches, and deliveries are to
// clients that read.
func TestStatusHasErrorsAndLatency(t *testing.T) {
	registry := counted(t, []requestRow{
		{"list", "pods", "cache", 100, "200"},
		{"list", "pods", "cache", 1, "504"},
		{"get", "pods", "upstream", 2, "500"},
		{"get", "pods", "proxy", 4, "429"},
		{"get", "pods", "upstream", 8, "429"},
		{"get", "pods", "upstream", 16, "404"},
		{"watch", "pods", "cache", 32, "410"},
	}, nil)
	took := prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: "watchproxy_request_duration_seconds", Help: "As there.", Buckets: []float64{0.001, 0.01, 0.1}}, []string{"verb", "resource", "source"})
	lag := prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: "watchproxy_watch_delivery_lag_seconds", Help: "As there.", Buckets: []float64{0.001, 0.01}}, []string{"resource", "client"})
	registry.MustRegister(took, lag)
	for range 50 {
		took.WithLabelValues("list", "pods", "cache").Observe(0.0005)
		took.WithLabelValues("get", "nodes", "cache").Observe(0.005)
		lag.WithLabelValues("pods", "prompt").Observe(0.0001)
		lag.WithLabelValues("pods", "slow").Observe(7)
	}
	took.WithLabelValues("watch", "pods", "cache").Observe(60)
	took.WithLabelValues("list", "pods", "upstream").Observe(3)
	s := statusOf(t, registry)
	if want := (failures{Server: 3, Limited: 12, Client: 48}); s.Errors != want {
		t.Errorf("got %+v, want %+v", s.Errors, want)
	}
	if c := s.Latency.Cache; c.Count != 100 || math.Abs(c.Seconds-0.275) > 1e-9 || len(c.Buckets) != 3 || c.Buckets[0] != (bucket{0.001, 50}) || c.Buckets[2] != (bucket{0.1, 100}) {
		t.Errorf("cache: %+v", c)
	}
	var b strings.Builder
	s.writeText(&b)
	for _, line := range []string{
		"errors     3 of the server (5xx), 12 limited (429), 48 of clients (other 4xx)\n",
		"latency    from the cache p50 1.0 ms, p99 9.8 ms; forwarded p50 100.0 ms, p99 100.0 ms; events p50 0.5 ms, p99 1.0 ms\n",
	} {
		if !strings.Contains(b.String(), line) {
			t.Errorf("no %q in\n%s", line, &b)
		}
	}
	if _, ok := (&histogram{}).quantile(0.5); ok {
		t.Error("a quantile of nothing")
	}
}
