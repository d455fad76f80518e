package watchcache

import (
	"bytes"
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/watchproxy/watchproxy/watchcache/object"
)

// Replace takes the state that a relist found, objects sorted by key at rv, and publishes its
// difference to the cached state as events, so watches go on as if the upstream watch had never
// broken. The resourceVersions in between are a gap: exact reads and new watches strictly inside
// the gap are refused, at its ends they are sound. A watch may have started ahead of the cache. If
// its start then lies inside the gap, the watch ends.
//
// A changed object is one MODIFIED event at its own resourceVersion, a new one ADDED. A missing
// object is DELETED. If another object of the same name (its uid differs) replaced an object, there
// is a DELETED and then an ADDED.
//
// A client resumes from the last resourceVersion that it saw, maybe at a replica with the true
// history, or with another gap. So two things must hold at each resourceVersion that a client sees.
// The client holds no object that upstream did not have then. The client holds all objects that
// have not changed since. It is unknown when objects were deleted, or left a selection. So these
// removals come first, at the last resourceVersion before the gap: a client that resumes there gets
// everything again. The sets follow in order. A watch ends if its objects may have been out of its
// selection for a part of the gap (see Cursor.passes).
//
// Replace fails with [ErrDiverged] and changes nothing if the relist cannot be a later state of the
// cache: rv or an object went back in time; a custom object has other bytes at the same
// resourceVersion; or there are more changes than revisions. Then only a new epoch (Reset) is
// sound.
func (c *Cache) Replace(objects []*object.Object, rv uint64, now time.Time) error {
	v := c.filled()
	if rv < v.rv {
		return fmt.Errorf("%w: listed at %d, cached at %d", ErrDiverged, rv, v.rv)
	}
	sets, deletions, err := v.difference(&c.resource, objects, rv)
	if err != nil {
		return err
	}
	if err := possible(sets, deletions, v.rv, rv); err != nil {
		return err
	}
	next, jumped := *v, rv > v.rv+1
	add := func(e Event) {
		e.jumped, e.at = jumped, Moment(now)
		next.append(e)
	}
	shown := rv // the only resourceVersion that clients see
	if jumped {
		next.gaps = append(slices.Clip(v.gaps), gap{after: v.rv, before: rv})
		shown = v.rv
	}
	for _, d := range deletions {
		e := next.mustChange(Change{Deleted: true, Object: d.object.At(shown)})
		e.RV = v.rv + 1
		add(e)
	}
	for _, o := range sets {
		if was := v.tree.Get(o.Key()); jumped && was != nil && was.UID() == o.UID() && !c.resource.Alike(was, o) {
			add(Event{Type: left, RV: v.rv + 1, Object: o, Prev: was, after: next.tree})
		}
	}
	for _, o := range sets {
		add(next.mustChange(Change{Object: o}))
	}
	next.rv = rv
	c.commit(v, &next, now)
	if jumped {
		// Cursors that start inside the gap have to end: see Cursor.Poll.
		c.interests.each((*Cursor).Wake)
	}
	return nil
}

// mustChange is change for a change that is known to fit.
func (v *view) mustChange(change Change) Event {
	e, err := v.change(change)
	if err != nil {
		panic("BUG: " + err.Error())
	}
	return e
}

// deletion is an object that a relist no longer shows.
type deletion struct {
	object *object.Object
	before uint64 // upper bound of its resourceVersion, exclusive
}

// difference compares the cached state with a listed one. It compares bytes only for a custom
// resource, whose definition can change: two versions of kube-apiserver behind one address may
// write the same built-in object differently.
func (v *view) difference(r *object.Resource, objects []*object.Object, rv uint64) (sets []*object.Object, deletions []deletion, err error) {
	gone := func(o *object.Object, before uint64) { deletions = append(deletions, deletion{o, before}) }
	i := 0
	for was := range v.tree.Objects("", "") {
		for ; i < len(objects) && objects[i].Key() < was.Key(); i++ {
			sets = append(sets, objects[i])
		}
		if i == len(objects) || objects[i].Key() != was.Key() {
			gone(was, rv+1)
			continue
		}
		is := objects[i]
		i++
		switch {
		case is.UID() != was.UID():
			gone(was, is.ResourceVersion())
			sets = append(sets, is)
		case is.ResourceVersion() != was.ResourceVersion():
			sets = append(sets, is)
		case r.SelfDescribing && !bytes.Equal(is.Item(), was.Item()):
			return nil, nil, fmt.Errorf("%w: %s at %d is written in another way: its definition changed", ErrDiverged, is.Key(), is.ResourceVersion())
		}
	}
	sets = append(sets, objects[i:]...)
	for _, o := range sets {
		if o.ResourceVersion() <= v.rv || o.ResourceVersion() > rv {
			return nil, nil, fmt.Errorf("%w: %s listed at %d, which is not in (%d, %d]", ErrDiverged, o.Key(), o.ResourceVersion(), v.rv, rv)
		}
	}
	return sets, deletions, nil
}

// possible sorts sets by resourceVersion, and checks that each change can have had a revision
// of its own; it assigns deletions by the earliest deadline.
func possible(sets []*object.Object, deletions []deletion, after, rv uint64) error {
	slices.SortFunc(sets, func(a, b *object.Object) int { return cmp.Compare(a.ResourceVersion(), b.ResourceVersion()) })
	slices.SortStableFunc(deletions, func(a, b deletion) int { return cmp.Compare(a.before, b.before) })
	for i := 1; i < len(sets); i++ {
		if sets[i].ResourceVersion() == sets[i-1].ResourceVersion() {
			return fmt.Errorf("%w: two objects at resourceVersion %d", ErrDiverged, sets[i].ResourceVersion())
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
			return fmt.Errorf("%w: more deletions in (%d, %d] than revisions", ErrDiverged, after, rv)
		}
		unused++
	}
	return nil
}
