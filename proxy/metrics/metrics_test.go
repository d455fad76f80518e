package metrics

import (
	"fmt"
	"maps"
	"net/http"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"go.uber.org/zap"

	"github.com/watchproxy/watchproxy/proxy/exchange"
)

// Made-up names that upstream refuses do not become labels. If upstream accepts every name, only a
// bounded number of names become labels. The metrics keep no queries in memory.
func TestLabelsAreBounded(t *testing.T) {
	registry := prometheus.NewRegistry()
	m := New(registry)
	series := func(name string) (n int) {
		families, err := registry.Gather()
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range families {
			if f.GetName() == name {
				n = len(f.GetMetric())
			}
		}
		return n
	}
	answer := func(method, path string, status int, from exchange.Source) {
		resp := exchange.NewResponse(status, from)
		m.Request(exchange.ParseRoute(method, path), resp, time.Millisecond)
	}
	const made = 2 * namesMost
	for i := range made {
		for _, path := range []string{"/api/v1/r%d", "/apis/g%d/v1/pods", "/apis/g/v%d/pods", "/api/v1/namespaces/n/pods/p/s%d", "/x%d"} {
			path := fmt.Sprintf(path, i)
			answer(http.MethodGet, path, http.StatusNotFound, exchange.FromUpstream)
			answer(http.MethodGet, path, http.StatusForbidden, exchange.FromProxy)
			answer(fmt.Sprint("METHOD", i), path, http.StatusMethodNotAllowed, exchange.FromUpstream)
		}
	}
	const kinds = 16
	if n := series("watchproxy_requests_total"); n > kinds {
		t.Errorf("refused names have %d series", n)
	}
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	for i := range made {
		target := fmt.Sprintf("/apis/external.metrics.k8s.io/v1beta1/namespaces/n/metric%d?labelSelector=%s", i, strings.Repeat("x", 60<<10))
		answer(http.MethodGet, target[:strings.IndexByte(target, '?')], http.StatusOK, exchange.FromUpstream)
		target = strings.Replace(target, "/namespaces/", "/watch/namespaces/", 1)
		answer(http.MethodGet, target[:strings.IndexByte(target, '?')], http.StatusOK, exchange.FromUpstream)
	}
	runtime.GC()
	runtime.ReadMemStats(&after)
	if n := series("watchproxy_requests_total"); n > namesMost+kinds {
		t.Errorf("names that upstream knows have %d series", n)
	}
	const each = 4 << 10
	if held := int64(after.HeapAlloc) - int64(before.HeapAlloc); held > namesMost*each {
		t.Errorf("%d names hold %d KiB", namesMost, held>>10)
	}
	long := exchange.ParseRoute(http.MethodGet, "/api/v1/"+strings.Repeat("a", labelsMost))
	if got := metricLabels(long, exchange.NewResponse(http.StatusOK, exchange.FromUpstream)); got != [3]string{} {
		t.Error("a long name is a label")
	}
	runtime.KeepAlive(m)
}

// Latencies have kube-apiserver's buckets and native buckets.
func TestDurations(t *testing.T) {
	registry := prometheus.NewRegistry()
	m := New(registry)
	list := exchange.NewResponse(http.StatusOK, exchange.FromCache)
	route := exchange.ParseRoute(http.MethodGet, "/api/v1/namespaces/a/pods")
	m.Request(route, list, time.Millisecond) // the response has not been written yet
	m.Written(route, list, 3*time.Second, 1234)
	lasting := exchange.NewResponse(http.StatusOK, exchange.FromUpstream)
	lasting.Lasts = true
	logs := exchange.ParseRoute(http.MethodGet, "/api/v1/namespaces/a/pods/p/log")
	m.Request(logs, lasting, 2*time.Millisecond)
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
			key := labels["resource"] + " " + labels["scope"]
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
	want := map[string]float64{"pods namespace": 3, "pods/log resource": 0.002, "bytes of pods ": 1234, "bytes of pods/log ": 99}
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
	ended("timeout")
	get()
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
# HELP watchproxy_watch_response_bytes_total Bytes written to watches from the cache.
# TYPE watchproxy_watch_response_bytes_total counter
watchproxy_watch_response_bytes_total{group="",resource="pods",version="v1"} 77
# HELP watchproxy_watches Open watches served from the cache.
# TYPE watchproxy_watches gauge
watchproxy_watches{group="",resource="pods",version="v1"} 1
`
	if err := testutil.GatherAndCompare(registry, strings.NewReader(want),
		"watchproxy_panics_total", "watchproxy_requests_in_flight", "watchproxy_watch_response_bytes_total", "watchproxy_watches"); err != nil {
		t.Error(err)
	}
	if n := testutil.ToFloat64(m.watches.ends.WithLabelValues("", "v1", "pods", "timeout")); n != 1 {
		t.Errorf("%v watches have timed out", n)
	}
	post()
	open("client")
}
