package watchcache

import (
	"iter"

	"github.com/watchproxy/watchproxy/watchcache/object"
)

// Snapshot is the state of a resource at one resourceVersion. It is a root
// pointer: taking one costs nothing, and it never changes.
type Snapshot struct {
	rv    uint64
	tree  tree
	epoch uint64
}

// ResourceVersion is the resourceVersion at which the snapshot holds.
func (s Snapshot) ResourceVersion() uint64 { return s.rv }

// Len is the number of objects.
func (s Snapshot) Len() int { return s.tree.len() }

// Bytes is the summed length of the objects' JSON.
func (s Snapshot) Bytes() int64 { return s.tree.size() }

// Get returns the object with this key, or nil. O(log n).
func (s Snapshot) Get(key string) *object.Object { return s.tree.get(key) }

// Count is the number of objects with from ≤ key < to; to "" means no end. O(log n).
func (s Snapshot) Count(from, to string) int {
	return max(s.tree.rank(to, true)-s.tree.rank(from, false), 0)
}

// Spans walks the pages that cover from ≤ key < to in key order; to "" means no end.
func (s Snapshot) Spans(from, to string) iter.Seq[Span] { return s.tree.spans(from, to) }

// Objects walks the objects with from ≤ key < to in key order; to "" means no end.
func (s Snapshot) Objects(from, to string) iter.Seq[*object.Object] {
	return func(yield func(*object.Object) bool) {
		for span := range s.tree.spans(from, to) {
			for _, o := range span.Objects() {
				if !yield(o) {
					return
				}
			}
		}
	}
}
