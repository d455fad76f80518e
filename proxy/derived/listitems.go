package derived

import (
	"slices"

	"github.com/watchproxy/watchproxy/watchcache/tree"
)

// ListItems are the items of a list, as spans of the cache's pages.
type ListItems struct {
	Spans     []tree.Span
	Count     int
	Separator string
	bytes     int64 // bytes of the cached items, without separators
}

// Add adds a span. It divides a span of large objects, because each span takes one turn.
func (l *ListItems) Add(s tree.Span) {
	const most = 1 << 20
	l.Spans = slices.AppendSeq(l.Spans, s.Parts(most))
	l.Count += s.Hi - s.Lo
	l.bytes += s.Bytes()
}

// Size returns the number of bytes of the cached items, with separators.
func (l *ListItems) Size() int64 {
	return l.bytes + int64(max(l.Count-1, 0)*len(l.Separator))
}
