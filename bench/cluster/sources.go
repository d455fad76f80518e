package cluster

import (
	"bytes"
	"net/http"
	"sync"
	"testing"

	"github.com/tidwall/gjson"
)

// The sources of a proxy's answers.
const (
	FromCache    = "cache"
	FromUpstream = "upstream"
)

// Sources are where a proxy's answers came from, by its access log. A line about an answer follows
// the answer's end.
type Sources struct {
	Path string // of the log
	mu   struct {
		sync.Mutex
		seen map[string]string // by Audit-Id
		from int64             // the part of the log that was read
	}
}

// OfT waits for the line about an answer with these headers, and returns the source.
func (s *Sources) OfT(tb testing.TB, h http.Header) (source string) {
	tb.Helper()
	Eventually(tb, "the access log has an answer", func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.mu.seen[h.Get("Audit-Id")] == "" {
			s.readLocked(tb)
		}
		source = s.mu.seen[h.Get("Audit-Id")]
		return source != ""
	})
	return source
}

func (s *Sources) readLocked(tb testing.TB) {
	tb.Helper()
	text, end, err := LinesFrom(s.Path, s.mu.from)
	if err != nil {
		tb.Fatal(err)
	}
	if s.mu.from = end; s.mu.seen == nil {
		s.mu.seen = map[string]string{}
	}
	for line := range bytes.Lines(text) {
		fields := gjson.GetManyBytes(line, "auditID", "source")
		s.mu.seen[fields[0].Str] = fields[1].Str
	}
}
