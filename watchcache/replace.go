package watchcache

import (
	"bytes"
	"cmp"
	"fmt"
	"slices"
	"time"
)

// Replace takes the state that a relist found, objects sorted by key at rv, and
// publishes what differs from the cached state as events, so that watches go on
// as if the upstream watch had never broken.
//
// A changed object is one MODIFIED event at its own resourceVersion, a new one
// ADDED. An object that is gone is DELETED, one that was replaced by another of
// the same name (its uid differs) DELETED and then ADDED. When exactly the
// deletions happened is unknown, but each took a revision of its own after the
// cache's resourceVersion, so there are enough unused ones to give each its
// own: the earliest that respects the order of deletion before re-creation.
//
// It fails with [ErrDiverged], changing nothing, if the relist cannot be a
// later state of what is cached: rv or an object went back in time, an object is
// written in another way though its kind is a custom one, or there are more deletions than revisions. Then only a new epoch (Reset) is sound.
func (c *Cache) Replace(objects []*Object, rv uint64, now time.Time) error {
	v := c.view.Load()
	if v == nil {
		panic("BUG: Replace before Reset")
	}
	if rv < v.rv {
		return fmt.Errorf("%w: listed at %d, cached at %d", ErrDiverged, rv, v.rv)
	}
	sets, deletions, err := v.difference(&c.resource, objects, rv)
	if err != nil {
		return err
	}
	events, err := schedule(sets, deletions, v.rv, rv)
	if err != nil {
		return err
	}
	next := *v
	if rv > v.rv+1 {
		next.gaps = append(slices.Clip(v.gaps), gap{after: v.rv, before: rv})
	}
	for _, change := range events {
		e, err := next.tree.change(change)
		if err != nil {
			panic("BUG: " + err.Error())
		}
		e.at = Moment(now)
		next.append(e)
	}
	next.rv = rv
	c.commit(v, &next, now)
	if rv > v.rv+1 {
		// Cursors that start inside the gap have to end: see Cursor.Poll.
		c.interests.each((*Cursor).Wake)
	}
	return nil
}

// deletion is an object that a relist no longer shows.
type deletion struct {
	object *Object
	before uint64 // it was deleted below this resourceVersion
}

// difference compares the cached state with a listed one. Only a custom resource's
// definition can change; two versions of kube-apiserver behind one address may
// write the same built-in object in two ways.
func (v *view) difference(r *Resource, objects []*Object, rv uint64) (sets []*Object, deletions []deletion, err error) {
	gone := func(o *Object, before uint64) { deletions = append(deletions, deletion{o, before}) }
	i := 0
	for span := range v.tree.spans("", "") {
		for _, was := range span.Objects() {
			for ; i < len(objects) && objects[i].key < was.key; i++ {
				sets = append(sets, objects[i])
			}
			if i == len(objects) || objects[i].key != was.key {
				gone(was, rv+1)
				continue
			}
			is := objects[i]
			i++
			switch {
			case is.uid != was.uid:
				gone(was, is.rv)
				sets = append(sets, is)
			case is.rv != was.rv:
				sets = append(sets, is)
			case r.SelfDescribing && !bytes.Equal(is.raw, was.raw):
				return nil, nil, fmt.Errorf("%w: %s at %d is written in another way: its definition changed", ErrDiverged, is.key, is.rv)
			}
		}
	}
	sets = append(sets, objects[i:]...)
	for _, o := range sets {
		if o.rv <= v.rv || o.rv > rv {
			return nil, nil, fmt.Errorf("%w: %s listed at %d, which is not in (%d, %d]", ErrDiverged, o.key, o.rv, v.rv, rv)
		}
	}
	return sets, deletions, nil
}

// schedule orders changes by resourceVersion and finds one for each deletion:
// the lowest unused, deletions with the earliest deadline first.
func schedule(sets []*Object, deletions []deletion, after, rv uint64) ([]Change, error) {
	slices.SortFunc(sets, func(a, b *Object) int { return cmp.Compare(a.rv, b.rv) })
	slices.SortStableFunc(deletions, func(a, b deletion) int { return cmp.Compare(a.before, b.before) })
	changes := make([]Change, 0, len(sets)+len(deletions))
	unused, used := after+1, sets
	for _, d := range deletions {
		for len(used) > 0 && used[0].rv <= unused {
			if used[0].rv == unused {
				unused++
			}
			used = used[1:]
		}
		if unused >= d.before {
			return nil, fmt.Errorf("%w: more deletions in (%d, %d] than revisions", ErrDiverged, after, rv)
		}
		changes = append(changes, Change{Deleted: true, Object: d.object.At(unused)})
		unused++
	}
	for _, o := range sets {
		changes = append(changes, Change{Object: o})
	}
	slices.SortStableFunc(changes, func(a, b Change) int { return cmp.Compare(a.Object.rv, b.Object.rv) })
	for i := 1; i < len(changes); i++ {
		if changes[i].Object.rv == changes[i-1].Object.rv {
			return nil, fmt.Errorf("%w: two objects at resourceVersion %d", ErrDiverged, changes[i].Object.rv)
		}
	}
	return changes, nil
}
