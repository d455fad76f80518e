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

// sources checks where the proxy's answers came from, by the proxy's access log. A line about an
// answer follows the answer's end.
type sources struct {
	path string
	mu   struct {
		sync.Mutex
		due map[string]due // by Audit-Id
	}
}

type due struct{ source, what string }

// expect notes the source that an answer must have.
func (s *sources) expect(h http.Header, source, what string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.mu.due == nil {
		s.mu.due = map[string]due{}
	}
	s.mu.due[h.Get("Audit-Id")] = due{source, what}
}

// check waits for the lines about all expected answers.
func (s *sources) check(t *testing.T) {
	t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	from, right := int64(0), map[string]int{}
	cluster.Eventually(t, "the access log is complete", func() bool {
		text, end, err := cluster.LinesFrom(s.path, from)
		if err != nil {
			t.Fatal(err)
		}
		from = end
		for line := range bytes.Lines(text) {
			fields := gjson.GetManyBytes(line, "auditID", "source")
			d, ok := s.mu.due[fields[0].Str]
			if !ok {
				continue
			}
			if delete(s.mu.due, fields[0].Str); d.source != fields[1].Str {
				t.Errorf("%s: the answer came from %q instead of %q\n%s", d.what, fields[1].Str, d.source, line)
			}
			right[d.source]++
		}
		return len(s.mu.due) == 0
	})
	t.Logf("%d answers came from the cache, and %d from upstream", right[cache], right[upstream])
}
