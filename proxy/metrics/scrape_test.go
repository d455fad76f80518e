package metrics

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"runtime"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/watchproxy/watchproxy/proxy/exchange"
)

// An aggregated API may answer for any name, so one client can request many names, with each verb
// and scope. The size of a scrape and the memory of the metrics stay limited.
func TestScrapeIsBounded(t *testing.T) {
	registry := prometheus.NewRegistry()
	m := New(registry)
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	const api = "/apis/external.metrics.k8s.io/v1beta1"
	for i := range 2 * namesMost {
		for _, asked := range []string{
			"GET %s/metric%d", "GET %s/namespaces/n/metric%d", "GET %s/namespaces/n/metric%d/x", "POST %s/namespaces/n/metric%d",
			"PUT %s/namespaces/n/metric%d/x", "PATCH %s/namespaces/n/metric%d/x", "DELETE %s/namespaces/n/metric%d/x", "DELETE %s/namespaces/n/metric%d",
			"GET %s/watch/namespaces/n/metric%d",
		} {
			var method, path string
			if _, err := fmt.Sscan(fmt.Sprintf(asked, api, i), &method, &path); err != nil {
				t.Fatal(err)
			}
			rt, resp := exchange.ParseRoute(method, path), exchange.NewResponse(http.StatusOK, exchange.FromUpstream)
			m.Request(rt, resp, time.Millisecond)
			for d := time.Millisecond; d < 10*time.Second; d *= 4 {
				m.Written(rt, resp, d, 1000)
			}
		}
	}
	runtime.GC()
	runtime.ReadMemStats(&after)
	began := time.Now()
	answer := httptest.NewRecorder()
	promhttp.HandlerFor(registry, promhttp.HandlerOpts{}).ServeHTTP(answer, httptest.NewRequest(http.MethodGet, "/metrics", http.NoBody))
	took := time.Since(began)
	scraped, err := io.Copy(io.Discard, answer.Body)
	if err != nil {
		t.Fatal(err)
	}
	held := int64(after.HeapAlloc) - int64(before.HeapAlloc)
	t.Logf("a scrape has %d MiB and takes %v; the metrics hold %d MiB", scraped>>20, took, held>>20)
	const most = 64 << 20
	if scraped > most || held > most {
		t.Errorf("a scrape has %d MiB, the metrics hold %d MiB", scraped>>20, held>>20)
	}
	runtime.KeepAlive(m)
}
