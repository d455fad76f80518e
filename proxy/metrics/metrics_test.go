package metrics

import (
	"fmt"
	"net/http"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

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
