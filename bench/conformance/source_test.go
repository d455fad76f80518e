package conformance

import (
	"context"
	"fmt"
	"net/http"
	"sync"

	"github.com/watchproxy/watchproxy/bench/cluster"
)

// source is where the proxy's answer came from, according to its metrics.
type source string

const (
	cache    source = "cache"
	upstream source = "upstream"
	// anywhere is for answers whose source depends on what else happens at the time.
	anywhere source = "anywhere"
	// ifCached means the cache, but upstream for collections that the apiserver itself does not
	// cache.
	ifCached source = "cache if the apiserver caches it"
)

// source resolves ifCached for a collection.
func (c *collection) source(of source) source {
	switch {
	case c.excluded:
		return upstream
	case of != ifCached:
		return of
	case c.uncached:
		return upstream
	}
	return cache
}

// looked is the last reading of the metrics, and the number of requests sent to the proxy by then.
// If no request has been sent since, the reading is still valid.
var looked struct {
	sync.Mutex
	sent   int64
	counts map[source]int
}

// forget discards the last reading.
func forget() {
	looked.Lock()
	defer looked.Unlock()
	looked.counts = nil
}

// sources returns the number of the proxy's answers so far from each source.
func sources(ctx context.Context) (map[source]int, error) {
	looked.Lock()
	defer looked.Unlock()
	if sent := proxied.Sent.Load(); looked.counts == nil || sent != looked.sent {
		counts, err := look(ctx)
		if err != nil {
			return nil, err
		}
		looked.sent, looked.counts = sent, counts
	}
	return looked.counts, nil
}

func look(ctx context.Context) (map[source]int, error) {
	got, err := admin.Ask(ctx, get("/metrics?name[]=watchproxy_requests_total"))
	if err != nil {
		return nil, err
	}
	if got.Status != http.StatusOK {
		return nil, fmt.Errorf("/metrics: %d", got.Status)
	}
	m, counts := cluster.Metrics("\n"+string(got.Body)), map[source]int{}
	for _, s := range []source{cache, upstream, "proxy"} {
		counts[s] = int(m.Sum("watchproxy_requests_total", fmt.Sprintf("source=%q", s)))
	}
	return counts, nil
}

// counted describes the difference between two readings: "" for nothing, "cache" or "upstream" for
// one answer, or a list of counts.
func counted(before, after map[source]int) source {
	var text string
	for s, n := range after {
		switch n -= before[s]; {
		case n == 1 && text == "":
			text = string(s)
		case n != 0:
			text += fmt.Sprintf(" %d × %s", n, s)
		}
	}
	return source(text)
}
