package shards

import (
	"net/http"
	"sync"
	"testing"

	"github.com/watchproxy/watchproxy/bench/cluster"
)

// tally counts answers by their way and their source.
type tally struct {
	mu    sync.Mutex
	heads []answered
}

type answered struct {
	way    way
	header http.Header
	what   string
	sure   bool // the cache must answer
}

func (c *tally) add(y way, h http.Header, what string, sure bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.heads = append(c.heads, answered{y, h, what, sure})
}

// check checks that nothing in a view came from upstream, and most of the rest from the cache.
func (c *tally) check(t *testing.T) {
	t.Helper()
	counts := map[string]map[string]int{}
	for _, a := range c.heads {
		source := a.way.to.sources.OfT(t, a.header)
		if counts[a.way.name] == nil {
			counts[a.way.name] = map[string]int{}
		}
		if counts[a.way.name][source]++; a.way.view != "" && source == cluster.FromUpstream {
			t.Errorf("%s: %s was forwarded", a.way.name, a.what)
		}
		if a.sure && source != cluster.FromCache {
			counts[a.way.name]["left"]++
		}
	}
	t.Log(counts)
	for name, n := range counts {
		if n["left"] > n[cluster.FromCache] { // some may be: what the cache cannot prove in time
			t.Errorf("%s: %d answers came from the cache, and %d that should have did not", name, n[cluster.FromCache], n["left"])
		}
	}
}
