package views

import (
	"net/http"
	"sync"
	"testing"

	"github.com/watchproxy/watchproxy/bench/cluster"
)

const (
	cache    = cluster.FromCache
	upstream = cluster.FromUpstream
)

// sources are where the proxy's answers came from, and should have come from.
type sources struct {
	cluster.Sources
	mu struct {
		sync.Mutex
		due []due
	}
}

type due struct {
	header       http.Header
	source, what string
}

// expect notes the source that an answer should have.
func (s *sources) expect(h http.Header, source, what string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.mu.due = append(s.mu.due, due{h, source, what})
}

// check waits for the lines about all expected answers. The cache may leave an answer to upstream
// if it cannot prove in time that it is current, but not often.
func (s *sources) check(t *testing.T) {
	t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	right, late := map[string]int{}, 0
	for _, d := range s.mu.due {
		switch source := s.OfT(t, d.header); source {
		case d.source:
			right[d.source]++
		case upstream:
			late++
		default:
			t.Errorf("%s: the answer came from %q instead of %q", d.what, source, d.source)
		}
	}
	s.mu.due = nil
	t.Logf("%d answers came from the cache, and %d from upstream, besides %d that the cache left to it", right[cache], right[upstream], late)
	if late > right[cache] {
		t.Error("the cache has left too much to upstream: the test does not test")
	}
}
