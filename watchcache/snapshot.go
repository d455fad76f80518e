package watchcache

import "github.com/watchproxy/watchproxy/watchcache/tree"

// Snapshot is the state of a resource at one resourceVersion. It never changes, and creating it
// costs nothing.
type Snapshot struct {
	tree.Tree
	rv, epoch uint64
}

// ResourceVersion returns the resourceVersion of the snapshot.
func (s Snapshot) ResourceVersion() uint64 { return s.rv }
