package tree

import (
	"fmt"

	"github.com/watchproxy/watchproxy/watchcache/object"
)

// Differences compares the tree with upstream's state, sorted by key. It returns the number of
// different objects, and descriptions of at most most of them.
func (t Tree) Differences(theirs []object.State, most int) (texts []string, all int) {
	note := func(format string, args ...any) {
		if all++; all <= most {
			texts = append(texts, fmt.Sprintf(format, args...))
		}
	}
	for o := range t.Objects("", "") {
		for ; len(theirs) > 0 && theirs[0].Key < o.Key(); theirs = theirs[1:] {
			note("%s is not cached", theirs[0].Key)
		}
		if len(theirs) == 0 || theirs[0].Key != o.Key() {
			note("%s is not there", o.Key())
			continue
		}
		if is := theirs[0]; is.UID != o.UID() || is.ResourceVersion != o.ResourceVersion() {
			note("%s is %s at %d, cached %s at %d",
				o.Key(), is.UID, is.ResourceVersion, o.UID(), o.ResourceVersion())
		}
		theirs = theirs[1:]
	}
	for _, is := range theirs {
		note("%s is not cached", is.Key)
	}
	return texts, all
}
