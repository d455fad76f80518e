//go:build verify

package metrics

import (
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/watchproxy/watchproxy/bench/cachetest"
	"github.com/watchproxy/watchproxy/proxy/exchange"
)

// The size of a scrape and the memory of the metrics stay limited, even if one client requests many
// names. Labels do not keep the requests in memory that they came with.
func TestScrapeIsBounded(t *testing.T) {
	registry := prometheus.NewRegistry()
	m := New(registry)
	before := cachetest.Heap()
	query := "?labelSelector=" + strings.Repeat("x", 60<<10)
	allNames(t, 2, func(method, path string) {
		target := path + query
		rt, resp := exchange.ParseRoute(method, target[:len(path)]), exchange.NewResponse(http.StatusOK, exchange.FromUpstream)
		m.Answered(rt, resp, time.Millisecond)
		for d := time.Millisecond; d < 10*time.Second; d *= 4 {
			m.Written(rt, resp, d, 1000)
		}
	})
	held := cachetest.Heap() - before
	answer := httptest.NewRecorder()
	promhttp.HandlerFor(registry, promhttp.HandlerOpts{}).ServeHTTP(answer, httptest.NewRequest(http.MethodGet, "/metrics", http.NoBody))
	const most = 64 << 20
	if scraped := answer.Body.Len(); scraped > most || held > most {
		t.Errorf("a scrape has %d MiB, the metrics hold %d MiB", scraped>>20, held>>20)
	}
	runtime.KeepAlive(m)
}
