//go:build verify

package metrics

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/watchproxy/watchproxy/proxy/exchange"
	"github.com/watchproxy/watchproxy/watchcache/cachetest"
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
		m.Request(rt, resp, time.Millisecond)
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

// However many users there are, and however long their names are, their counts need little memory.
func TestMemoryOfUsers(t *testing.T) {
	var u Users
	before := cachetest.Heap()
	const most = 5 * usersMost
	for i := range most {
		u.Request(strings.Repeat("x", 100<<10)[:4]+fmt.Sprint(i), i%2 == 0)
		u.Turn(fmt.Sprint(i, strings.Repeat("x", userNameMost)), 1e6)
	}
	const each = 1 << 10
	if held := cachetest.Heap() - before; held > usersMost*each {
		t.Errorf("%d users hold %d KiB", most, held>>10)
	}
	runtime.KeepAlive(&u)
}
