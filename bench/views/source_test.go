package views

import (
	"bytes"
	"net/http"
	"sync"
	"testing"

	"github.com/tidwall/gjson"

	"github.com/watchproxy/watchproxy/bench/cluster"
)

// The sources of the proxy's answers.
const (
	cache    = "cache"
	upstream = "upstream"
)

// sources are where the proxy's answers came from, by the proxy's access log. A line about an
// answer follows the answer's end.
type sources struct {
	path string
	mu   struct {
		sync.Mutex
		due  map[string]due    // by Audit-Id
		seen map[string]string // by Audit-Id
		from int64             // the part of the log that was read
	}
}

type due struct{ source, what string }

// expect notes the source that an answer should have.
func (s *sources) expect(h http.Header, source, what string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.mu.due == nil {
		s.mu.due = map[string]due{}
	}
	s.mu.due[h.Get("Audit-Id")] = due{source, what}
}

// of waits for the line about an answer, and returns the source.
func (s *sources) of(t *testing.T, h http.Header) (source string) {
	t.Helper()
	cluster.Eventually(t, "the access log has an answer", func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.readLocked(t)
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

// check waits for the lines about all expected answers. The cache may leave an answer to upstream
// if it cannot prove in time that it is current, but not often.
func (s *sources) check(t *testing.T) {
	t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	cluster.Eventually(t, "the access log is complete", func() bool {
		s.readLocked(t)
		for id := range s.mu.due {
			if s.mu.seen[id] == "" {
				return false
			}
		}
		return true
	})
	right, late := map[string]int{}, 0
	for id, d := range s.mu.due {
		switch s.mu.seen[id] {
		case d.source:
			right[d.source]++
		case upstream:
			late++
		default:
			t.Errorf("%s: the answer came from %q instead of %q", d.what, s.mu.seen[id], d.source)
		}
	}
	s.mu.due = nil
	t.Logf("%d answers came from the cache, and %d from upstream, besides %d that the cache left to it", right[cache], right[upstream], late)
	if late > right[cache] {
		t.Error("the cache has left too much to upstream: the test does not test")
	}
}
