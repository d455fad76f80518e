package client

import (
	"errors"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
)

// All requests count, by method, host and status code. Clients cannot invent methods, and pods cannot
// invent codes.
func TestMeasure(t *testing.T) {
	registry := prometheus.NewRegistry()
	transport := NewMetrics(registry).Measure(roundTrip(func(req *http.Request) (*http.Response, error) {
		if req.URL.Path == "/gone" {
			return nil, errors.New("no answer")
		}
		code, err := strconv.Atoi(strings.TrimPrefix(req.URL.Path, "/odd"))
		if err != nil {
			code = http.StatusTeapot
		}
		return &http.Response{StatusCode: code, Body: http.NoBody}, nil
	}))
	for method, path := range map[string]string{"": "/", http.MethodPost: "/gone", http.MethodPut: "/odd522", http.MethodPatch: "/odd999", "BREW": "/pot", "BREW2": "/pot"} {
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
# HELP rest_client_requests_total All requests to upstream (of feeds, forwarded, checks, reviews), by status code (<error>: no answer; 5xx and the like: unknown codes), method and host.
# TYPE rest_client_requests_total counter
rest_client_requests_total{code="418",host="10.0.0.1:6443",method="GET"} 1
rest_client_requests_total{code="418",host="10.0.0.1:6443",method="other"} 2
rest_client_requests_total{code="5xx",host="10.0.0.1:6443",method="PUT"} 1
rest_client_requests_total{code="9xx",host="10.0.0.1:6443",method="PATCH"} 1
rest_client_requests_total{code="<error>",host="10.0.0.1:6443",method="POST"} 1
`
	if err := testutil.GatherAndCompare(registry, strings.NewReader(want), "rest_client_requests_total"); err != nil {
		t.Error(err)
	}
	if n, err := testutil.GatherAndCount(registry, "rest_client_request_duration_seconds"); err != nil || n != 5 {
		t.Errorf("%d series of durations, %v", n, err)
	}
}

// The bytes that a feed reads count, and no others.
func TestReceivedBytes(t *testing.T) {
	registry := prometheus.NewRegistry()
	c := New(&url.URL{Scheme: "https", Host: "10.0.0.1"}, roundTrip(func(*http.Request) (*http.Response, error) {
		return &http.Response{StatusCode: http.StatusOK, Body: io.NopCloser(strings.NewReader("0123456789"))}, nil
	}), NewMetrics(registry))
	for _, most := range []int64{7, 100} {
		resp, err := c.Send(t.Context(), Get{Verb: "list", GVR: configmaps, Path: "/", Accept: MimeJSON})
		if err != nil {
			t.Fatal(err)
		}
		_, _ = io.ReadAll(io.LimitReader(resp.Body, most))
		_ = resp.Body.Close()
	}
	if n := testutil.ToFloat64(c.metrics.received.WithLabelValues("", "v1", "configmaps")); n != 17 {
		t.Errorf("%v bytes", n)
	}
}
