package watchcache

import "github.com/watchproxy/watchproxy/watchcache/tree"

// Snapshot is the state of a resource at one resourceVersion. Taking one costs nothing, and it
// never changes.
type Snapshot struct {
	tree.Tree
	rv, epoch uint64
}

// ResourceVersion is the resourceVersion at which the snapshot holds.
func (s Snapshot) ResourceVersion() uint64 { return s.rv }
