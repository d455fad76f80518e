package watchcache

import (
	"fmt"

	"github.com/watchproxy/watchproxy/watchcache/object"
	"github.com/watchproxy/watchproxy/watchcache/tree"
)

// Snapshot is the state of a resource at one resourceVersion. Taking one costs nothing, and it
// never changes.
type Snapshot struct {
	tree.Tree
	rv, epoch uint64
}

// ResourceVersion is the resourceVersion at which the snapshot holds.
func (s Snapshot) ResourceVersion() uint64 { return s.rv }

// Differences returns in which objects upstream's state, sorted by key, differs from the snapshot:
// at least one object if there are any, and not many more than most.
func (s Snapshot) Differences(theirs []object.State, most int) (wrong []string) {
	for o := range s.Objects("", "") {
		for ; len(theirs) > 0 && theirs[0].Key < o.Key(); theirs = theirs[1:] {
			wrong = append(wrong, theirs[0].Key+" is not cached")
		}
		switch {
		case len(wrong) >= most:
			return wrong
		case len(theirs) == 0 || theirs[0].Key != o.Key():
			wrong = append(wrong, o.Key()+" is not there")
			continue
		case theirs[0].UID != o.UID() || theirs[0].ResourceVersion != o.ResourceVersion():
			wrong = append(wrong, fmt.Sprintf("%s is %s at %d, cached %s at %d",
				o.Key(), theirs[0].UID, theirs[0].ResourceVersion, o.UID(), o.ResourceVersion()))
		}
		theirs = theirs[1:]
	}
	for ; len(theirs) > 0 && len(wrong) < most; theirs = theirs[1:] {
		wrong = append(wrong, theirs[0].Key+" is not cached")
	}
	return wrong
}
