package client

import (
	"errors"
	"net/http"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
)

// All requests count, by method, host and status code. Clients cannot invent methods.
func TestMeasure(t *testing.T) {
	registry := prometheus.NewRegistry()
	transport := NewMetrics(registry).Measure(roundTrip(func(req *http.Request) (*http.Response, error) {
		if req.URL.Path == "/gone" {
			return nil, errors.New("no answer")
		}
		return &http.Response{StatusCode: http.StatusTeapot, Body: http.NoBody}, nil
	}))
	for method, path := range map[string]string{"": "/", http.MethodPost: "/gone", "BREW": "/pot", "BREW2": "/pot"} {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "https://10.0.0.1:6443"+path, http.NoBody)
		if err != nil {
			t.Fatal(err)
		}
		req.Method = method
		if resp, err := transport.RoundTrip(req); (err != nil) != (path == "/gone") {
			t.Errorf("%s: %v, %v", method, resp, err)
		}
	}
	const want = `
# HELP rest_client_requests_total All requests to upstream (of feeds, forwarded, checks, reviews), by status code (<error>: no answer), method and host.
# TYPE rest_client_requests_total counter
rest_client_requests_total{code="418",host="10.0.0.1:6443",method="GET"} 1
rest_client_requests_total{code="418",host="10.0.0.1:6443",method="other"} 2
rest_client_requests_total{code="<error>",host="10.0.0.1:6443",method="POST"} 1
`
	if err := testutil.GatherAndCompare(registry, strings.NewReader(want), "rest_client_requests_total"); err != nil {
		t.Error(err)
	}
	if n, err := testutil.GatherAndCount(registry, "rest_client_request_duration_seconds"); err != nil || n != 3 {
		t.Errorf("%d series of durations, %v", n, err)
	}
}
