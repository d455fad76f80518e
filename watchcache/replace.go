package watchcache

import (
	"bytes"
	"cmp"
	"slices"
	"time"

	"github.com/watchproxy/watchproxy/watchcache/object"
)

// Replace updates the cache to the state of a relist. The objects are sorted by key, and rv is
// their resourceVersion. The differences become events, so watches continue as if the upstream
// watch had never broken. The resourceVersions between the cached state and rv are a gap. Exact
// reads and new watches are possible at the gap's two ends, and refused in between. An open watch
// that started ahead of the cache ends if its start lies inside the gap. If another object (by its
// uid) has the same name, there are a DELETED and then an ADDED event.
//
// A client may resume from the last resourceVersion that it saw, at a replica with the true history
// or with a different gap. So at each resourceVersion that the client sees, upstream must have had
// all of the client's objects, and the client must have every object that has not changed since. A
// relist does not show when objects were deleted or left a selection. So these removals come first,
// at the last resourceVersion before the gap. A client that resumes there gets all changes of the
// gap again. Then the sets (added and changed objects) follow in order. A watch ends if its objects
// may have been outside its selection during a part of the gap (see Cursor.passes).
//
// Replace returns [ErrDiverged] and changes nothing if the relist cannot be a later state of the
// cache: rv or an object went back in time, an object has other bytes at the same resourceVersion,
// readers have seen another state at rv, or there are more changes than revisions. The writer then
// has to begin a new epoch (Reset). Other bytes mean that upstream was upgraded or configured anew,
// that a definition has changed, or that etcd was restored. Without a new epoch, clients would keep
// the old bytes until the object changes.
func (w *Writer) Replace(objects []*object.Object, rv uint64, now time.Time) error {
	v := w.filled()
	if rv < v.rv {
		return diverged("listed at %d, cached at %d", rv, v.rv)
	}
	exact := w.cache.resource.Encoding != object.Table
	sets, deletions, err := v.difference(objects, rv, exact)
	if err != nil {
		return err
	}
	if s, ok := v.before(rv); ok && rv > v.rv {
		seen := view{tree: s.Tree, rv: rv}
		if _, missing, err := seen.difference(objects, rv, exact); err != nil || len(missing) > 0 {
			return diverged("readers have seen another state at %d", rv)
		}
	}
	if err := possible(sets, deletions, v.rv, rv, w.cache.resource.NoWatchCache); err != nil {
		return err
	}
	next, jumped := *v, rv > v.rv+1
	next.since = min(v.since, rv) // a distrusted state that is equal at its own rv was right
	add := func(e Event) {
		e.jumped, e.at = jumped, Moment(now)
		next.append(e)
	}
	removed := rv // the resourceVersion of removals for clients
	if jumped {
		next.gaps = append(slices.Clip(v.gaps), gap{after: v.rv, before: rv})
		removed = v.rv
	}
	for _, d := range deletions {
		e := next.mustChange(Change{Deleted: true, Object: d.object.At(removed)})
		e.RV = v.rv + 1
		add(e)
	}
	for _, o := range sets {
		was := v.tree.Get(o.Key())
		same := was != nil && was.UID() == o.UID()
		if jumped && same && !w.cache.resource.Alike(was, o) {
			add(Event{
				Type:   left,
				RV:     v.rv + 1,
				Object: o,
				Prev:   was,
				after:  next.tree,
			})
		}
	}
	for _, o := range sets {
		add(next.mustChange(Change{Object: o}))
	}
	next.rv = rv
	w.commit(v, &next, now)
	if jumped {
		// Wake all cursors: a cursor whose start lies inside the gap must end (see Cursor.Poll).
		w.cache.interests.each((*Cursor).Wake)
	}
	return nil
}

func (v *view) mustChange(change Change) Event {
	e, err := v.change(change)
	if err != nil {
		panic("BUG: " + err.Error())
	}
	return e
}

type deletion struct {
	object *object.Object
	before uint64 // exclusive upper bound of the deletion's resourceVersion
}

// difference compares the cached state with a listed state. If exact is true, it also compares the
// bytes of objects with equal resourceVersions.
func (v *view) difference(
	objects []*object.Object, rv uint64, exact bool,
) (sets []*object.Object, deletions []deletion, err error) {
	i := 0
	for was := range v.tree.Objects("", "") {
		for ; i < len(objects) && objects[i].Key() < was.Key(); i++ {
			sets = append(sets, objects[i])
		}
		if i == len(objects) || objects[i].Key() != was.Key() {
			deletions = append(deletions, deletion{was, rv + 1})
			continue
		}
		is := objects[i]
		i++
		switch {
		case is.UID() != was.UID():
			deletions = append(deletions, deletion{was, is.ResourceVersion()})
			sets = append(sets, is)
		case is.ResourceVersion() != was.ResourceVersion():
			sets = append(sets, is)
		case exact && !bytes.Equal(is.Item(), was.Item()):
			return nil, nil, diverged("%s at %d has other bytes: upstream, its definition or its "+
				"history changed", is.Key(), is.ResourceVersion())
		}
	}
	sets = append(sets, objects[i:]...)
	for _, o := range sets {
		if at := o.ResourceVersion(); at <= v.rv || at > rv {
			return nil, nil, diverged("%s at %d is not in (%d, %d]", o.Key(), at, v.rv, rv)
		}
	}
	return sets, deletions, nil
}

// possible sorts sets by resourceVersion. It returns an error unless each change can have its own
// revision. Deletions get free revisions, in the order of their bounds. If leases expire, deletions
// may share a revision.
func possible(sets []*object.Object, deletions []deletion, after, rv uint64, leases bool) error {
	slices.SortFunc(sets, func(a, b *object.Object) int {
		return cmp.Compare(a.ResourceVersion(), b.ResourceVersion())
	})
	byBound := func(a, b deletion) int { return cmp.Compare(a.before, b.before) }
	slices.SortStableFunc(deletions, byBound)
	for i := 1; i < len(sets); i++ {
		if sets[i].ResourceVersion() == sets[i-1].ResourceVersion() {
			return diverged("two objects at resourceVersion %d", sets[i].ResourceVersion())
		}
	}
	unused, used := after+1, sets
	for _, d := range deletions {
		for len(used) > 0 && used[0].ResourceVersion() <= unused {
			if used[0].ResourceVersion() == unused {
				unused++
			}
			used = used[1:]
		}
		if unused >= d.before {
			return diverged("more deletions in (%d, %d] than revisions", after, rv)
		}
		if !leases {
			unused++
		}
	}
	return nil
}
