package watchcache

import (
	"fmt"

	"github.com/watchproxy/watchproxy/watchcache/object"
	"github.com/watchproxy/watchproxy/watchcache/tree"
)

// Snapshot is the state of a resource at one resourceVersion. It never changes, and taking one
// costs nothing.
type Snapshot struct {
	tree.Tree
	rv, epoch uint64
}

// ResourceVersion is the resourceVersion of the snapshot.
func (s Snapshot) ResourceVersion() uint64 { return s.rv }

// Differences compares the snapshot with upstream's state, sorted by key. It returns the number of
// objects that differ and describes up to most of them.
func (s Snapshot) Differences(theirs []object.State, most int) (shown []string, all int) {
	note := func(format string, args ...any) {
		if all++; all <= most {
			shown = append(shown, fmt.Sprintf(format, args...))
		}
	}
	for o := range s.Objects("", "") {
		for ; len(theirs) > 0 && theirs[0].Key < o.Key(); theirs = theirs[1:] {
			note("%s is not cached", theirs[0].Key)
		}
		if len(theirs) == 0 || theirs[0].Key != o.Key() {
			note("%s is not there", o.Key())
			continue
		}
		if is := theirs[0]; is.UID != o.UID() || is.ResourceVersion != o.ResourceVersion() {
			note("%s is %s at %d, cached %s at %d", o.Key(), is.UID, is.ResourceVersion, o.UID(), o.ResourceVersion())
		}
		theirs = theirs[1:]
	}
	for _, is := range theirs {
		note("%s is not cached", is.Key)
	}
	return shown, all
}
