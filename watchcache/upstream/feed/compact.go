package feed

import (
	"cmp"
	"slices"

	"github.com/watchproxy/watchproxy/watchcache"
	"github.com/watchproxy/watchproxy/watchcache/object"
)

// compact turns the changes that arrived during a list into a state, sorted by key. The last change
// of each object counts.
func compact(changes []watchcache.Change) []*object.Object {
	byKey := func(a, b watchcache.Change) int { return cmp.Compare(a.Object.Key(), b.Object.Key()) }
	if !slices.IsSortedFunc(changes, byKey) {
		slices.SortStableFunc(changes, byKey)
	}
	objects := make([]*object.Object, 0, len(changes))
	for i, c := range changes {
		last := i == len(changes)-1 || changes[i+1].Object.Key() != c.Object.Key()
		if last && !c.Deleted {
			objects = append(objects, c.Object)
		}
	}
	return objects
}
