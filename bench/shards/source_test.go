package shards

import (
	"bytes"
	"net/http"
	"sync"
	"testing"

	"github.com/tidwall/gjson"

	"github.com/watchproxy/watchproxy/bench/cluster"
)

// The sources of a proxy's answers.
const (
	fromCache    = "cache"
	fromUpstream = "upstream"
)

// sources are where a proxy's answers came from, by its access log. A line about an answer follows
// the answer's end.
type sources struct {
	path string
	mu   struct {
		sync.Mutex
		seen map[string]string // by Audit-Id
		from int64             // the part of the log that was read
	}
}

// of waits for the line about an answer, and returns the source.
func (s *sources) of(t *testing.T, h http.Header) (source string) {
	t.Helper()
	cluster.Eventually(t, "the access log has an answer", func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.mu.seen[h.Get("Audit-Id")] == "" {
			s.readLocked(t)
		}
		source = s.mu.seen[h.Get("Audit-Id")]
		return source != ""
	})
	return source
}

func (s *sources) readLocked(t *testing.T) {
	t.Helper()
	text, end, err := cluster.LinesFrom(s.path, s.mu.from)
	if err != nil {
		t.Fatal(err)
	}
	if s.mu.from = end; s.mu.seen == nil {
		s.mu.seen = map[string]string{}
	}
	for line := range bytes.Lines(text) {
		fields := gjson.GetManyBytes(line, "auditID", "source")
		s.mu.seen[fields[0].Str] = fields[1].Str
	}
}

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
		source := a.way.to.sources.of(t, a.header)
		if counts[a.way.name] == nil {
			counts[a.way.name] = map[string]int{}
		}
		if counts[a.way.name][source]++; a.way.view != "" && source == fromUpstream {
			t.Errorf("%s: %s was forwarded", a.way.name, a.what)
		}
		if a.sure && source != fromCache {
			counts[a.way.name]["left"]++
		}
	}
	t.Log(counts)
	const most = 10 // of a hundred may be left to upstream: what the cache cannot prove in time
	for name, n := range counts {
		if n["left"]*100 > most*(n[fromCache]+n["left"]) {
			t.Errorf("%s: %d answers came from the cache, and %d that should have did not", name, n[fromCache], n["left"])
		}
	}
}
