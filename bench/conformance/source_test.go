package conformance

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"sync"

	"github.com/watchproxy/watchproxy/bench/cluster"
)

// source is the source of the proxy's response, according to the proxy's metrics.
type source string

const (
	cache    source = "cache"
	upstream source = "upstream"
	// anywhere is for responses whose source depends on concurrent requests.
	anywhere source = "anywhere"
	// ifCached means the cache, except for collections that the apiserver itself does not cache:
	// for these it means upstream.
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

// looked is the last reading of the metrics, and the number of requests sent to the proxy before
// it. If no request has been sent since, the reading is still valid.
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

// sources returns the number of the proxy's responses so far from each source.
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

// reasons returns the samples of watchproxy_forwarded_total for a target's resource, and the end of
// the proxy's log. They show why a request was forwarded.
func reasons(ctx context.Context, target string) string {
	const lines = 5
	got, err := admin.Ask(ctx, get("/metrics?name[]=watchproxy_forwarded_total"))
	if err != nil {
		return err.Error()
	}
	path, _, _ := strings.Cut(target, "?")
	var all []string
	for line := range strings.Lines(string(got.Body)) {
		_, resource, _ := strings.Cut(line, `resource="`)
		if resource, _, ok := strings.Cut(resource, `"`); ok && strings.Contains(path, "/"+resource) {
			all = append(all, line)
		}
	}
	log := strings.SplitAfter(logOf(), "\n")
	return strings.Join(append(all, log[max(0, len(log)-lines):]...), "")
}

// matches reports whether a response may have come from a source.
func (s source) matches(from source) bool {
	return from == s || s == anywhere || s == cache && inParts && from == upstream
}

// counted describes the difference between two readings: "" for nothing, "cache" or "upstream" for
// one response, or a list of counts.
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
