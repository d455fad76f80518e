package metrics

import (
	"fmt"
	"maps"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"go.uber.org/zap"

	"github.com/watchproxy/watchproxy/proxy/exchange"
)

// Made-up names that upstream refuses do not become labels. If upstream accepts every name, with
// every verb and scope, only a bounded number of names become labels.
func TestLabelsAreBounded(t *testing.T) {
	registry := prometheus.NewRegistry()
	m := New(registry)
	atMost := func(most int, what string) {
		t.Helper()
		families, err := registry.Gather()
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range families {
			if n := len(f.GetMetric()); n > most {
				t.Errorf("%s have %d series of %s, at most %d are allowed", what, n, f.GetName(), most)
			}
		}
	}
	answer := func(method, path string, status int, from exchange.Source) {
		rt, resp := exchange.ParseRoute(method, path), exchange.NewResponse(status, from)
		m.Answered(rt, resp, time.Millisecond)
		m.Written(rt, resp, time.Millisecond, 1000)
	}
	for i := range 200 {
		for _, path := range []string{"/api/v1/r%d", "/apis/g%d/v1/pods", "/apis/g/v%d/pods", "/api/v1/namespaces/n/pods/p/s%d", "/x%d"} {
			path := fmt.Sprintf(path, i)
			answer(http.MethodGet, path, http.StatusNotFound, exchange.FromUpstream)
			answer(http.MethodGet, path, http.StatusForbidden, exchange.FromProxy)
			answer(fmt.Sprint("METHOD", i), path, http.StatusMethodNotAllowed, exchange.FromUpstream)
		}
	}
	const kinds = 32
	atMost(kinds, "refused names")
	allNames(t, 1, func(method, path string) { answer(method, path, http.StatusOK, exchange.FromUpstream) })
	atMost(namesMost+kinds, "names that upstream knows")
	long := exchange.ParseRoute(http.MethodGet, "/api/v1/"+strings.Repeat("a", labelsMost))
	if got := metricLabels(long, exchange.NewResponse(http.StatusOK, exchange.FromUpstream)); got != [3]string{} {
		t.Error("a long name is a label")
	}
}

// allNames calls ask with requests of more kinds than have labels. An aggregated API may answer for
// any name, with each verb and scope. rounds multiplies the number of names.
func allNames(t *testing.T, rounds int, ask func(method, path string)) {
	t.Helper()
	const api = "/apis/external.metrics.k8s.io/v1beta1"
	asked := [][2]string{
		{http.MethodGet, "/metric%d"},
		{http.MethodGet, "/namespaces/n/metric%d"},
		{http.MethodGet, "/namespaces/n/metric%d/x"},
		{http.MethodPost, "/namespaces/n/metric%d"},
		{http.MethodPut, "/namespaces/n/metric%d/x"},
		{http.MethodPatch, "/namespaces/n/metric%d/x"},
		{http.MethodDelete, "/namespaces/n/metric%d/x"},
		{http.MethodDelete, "/namespaces/n/metric%d"},
		{http.MethodGet, "/watch/namespaces/n/metric%d"},
	}
	for i := range rounds * 2 * namesMost / len(asked) {
		for _, a := range asked {
			ask(a[0], api+fmt.Sprintf(a[1], i))
		}
	}
}

// Latencies have kube-apiserver's buckets and native buckets.
func TestDurations(t *testing.T) {
	registry := prometheus.NewRegistry()
	m := New(registry)
	list := exchange.NewResponse(http.StatusOK, exchange.FromCache)
	route := exchange.ParseRoute(http.MethodGet, "/api/v1/namespaces/a/pods")
	m.Answered(route, list, time.Millisecond) // the response has not been written yet
	m.Written(route, list, 3*time.Second, 1234)
	lasting := exchange.NewResponse(http.StatusOK, exchange.FromUpstream)
	lasting.Lasts = true
	logs := exchange.ParseRoute(http.MethodGet, "/api/v1/namespaces/a/pods/p/log")
	m.Answered(logs, lasting, 2*time.Millisecond)
	m.Written(logs, lasting, time.Hour, 99)
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	sums := map[string]float64{}
	for _, f := range families {
		for _, series := range f.GetMetric() {
			labels := map[string]string{}
			for _, l := range series.GetLabel() {
				labels[l.GetName()] = l.GetValue()
			}
			key := labels["version"] + " " + labels["resource"] + " " + labels["scope"]
			switch f.GetName() {
			case "watchproxy_request_duration_seconds":
				h := series.GetHistogram()
				sums[key] = h.GetSampleSum()
				if len(h.GetBucket()) != len(LatencyBuckets) || h.GetSampleCount() != 1 || h.Schema == nil || len(h.GetPositiveSpan()) == 0 {
					t.Errorf("%s: %v", key, h)
				}
			case "watchproxy_response_bytes_total":
				sums["bytes of "+key] = series.GetCounter().GetValue()
			}
		}
	}
	want := map[string]float64{"v1 pods namespace": 3, "v1 pods/log resource": 0.002, "bytes of v1 pods ": 1234, "bytes of v1 pods/log ": 99}
	if !maps.Equal(sums, want) {
		t.Errorf("%v, want %v", sums, want)
	}
}

// Requests in flight, watches, their ends and their lags are counted while they last.
func TestCounts(t *testing.T) {
	registry := prometheus.NewRegistry()
	m := New(registry)
	route := exchange.ParseRoute(http.MethodGet, "/api/v1/pods")
	get, post := m.Began(http.MethodGet), m.Began(http.MethodPost)
	ended, open := m.WatchOpened(route), m.WatchOpened(route)
	ended.Ended("timeout")
	get.Dec()
	m.Lag(route).Bytes.Add(77)
	m.Panicked(zap.NewNop(), InWatch, "reason")
	const want = `
# HELP watchproxy_panics_total Panics that ended one request, watch or stream, by place (handler, watch, stream, review). The log has the stack.
# TYPE watchproxy_panics_total counter
watchproxy_panics_total{place="handler"} 0
watchproxy_panics_total{place="review"} 0
watchproxy_panics_total{place="stream"} 0
watchproxy_panics_total{place="watch"} 1
# HELP watchproxy_requests_in_flight Requests that are being answered, by kind (mutating, readOnly). Watches, logs, exec, attach and port-forward count until their answer begins.
# TYPE watchproxy_requests_in_flight gauge
watchproxy_requests_in_flight{request_kind="mutating"} 1
watchproxy_requests_in_flight{request_kind="readOnly"} 0
# HELP watchproxy_response_bytes_total Bytes of the bodies of answers. They count when the answer has ended, those of watches from the cache when they are written.
# TYPE watchproxy_response_bytes_total counter
watchproxy_response_bytes_total{group="",resource="pods",source="cache",verb="watch",version="v1"} 77
# HELP watchproxy_watches Open watches served from the cache.
# TYPE watchproxy_watches gauge
watchproxy_watches{group="",resource="pods",version="v1"} 1
`
	if err := testutil.GatherAndCompare(registry, strings.NewReader(want),
		"watchproxy_panics_total", "watchproxy_requests_in_flight", "watchproxy_response_bytes_total", "watchproxy_watches"); err != nil {
		t.Error(err)
	}
	if n := testutil.ToFloat64(m.watches.ends.WithLabelValues("", "v1", "pods", "timeout")); n != 1 {
		t.Errorf("%v watches have timed out", n)
	}
	lags, err := testutil.GatherAndCount(registry, "watchproxy_watch_delivery_lag_seconds")
	if err != nil || lags != 2 {
		t.Errorf("%d series of lags, want those of prompt and of slow clients: %v", lags, err)
	}
	post.Dec()
	open.Ended("client")
}
