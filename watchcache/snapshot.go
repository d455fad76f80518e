package watchcache

import "github.com/watchproxy/watchproxy/watchcache/tree"

// Snapshot is the state of a resource at one resourceVersion. It never changes, and taking one
// costs nothing.
type Snapshot struct {
	tree.Tree
	rv, epoch uint64
}

// ResourceVersion is the resourceVersion of the snapshot.
func (s Snapshot) ResourceVersion() uint64 { return s.rv }
