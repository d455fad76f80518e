package watchcache

import (
	"fmt"
	"hash/maphash"
	"sync"
	"time"

	"github.com/watchproxy/watchproxy/watchcache/object"
	"github.com/watchproxy/watchproxy/watchcache/tree"
)

// Writer changes the state of a cache. One goroutine at a time may use it;
// SetBookmark is for any.
type Writer struct {
	cache  *Cache
	ending sync.Once
	woken  []*Cursor // scratch space
}

// Change is a change from upstream's watch.
type Change struct {
	Deleted bool
	Object  *object.Object
}

// Reset begins a new epoch with the given state. The objects are sorted by key, and rv is their
// resourceVersion. Cursors of the previous epoch end with [ErrEnded].
func (w *Writer) Reset(objects []*object.Object, rv uint64) {
	// At first, the trees of all caches of a resource have the same slots.
	r := &w.cache.resource
	state := tree.Build(objects, maphash.String(slotSeed, fmt.Sprint(r.GVR, r.Encoding)))
	next := &view{
		epoch: 1,
		rv:    rv,
		tree:  state,
		since: rv,
		base:  state,
		first: 1,
		end:   1,
	}
	if v := w.cache.view.Load(); v != nil {
		next.epoch = v.epoch + 1
		next.abandoned = max(v.abandoned, v.newest().rv)
		// A cursor that is being opened may have marks from the previous epoch. Sequence numbers
		// continue, so those marks never match new events.
		next.first, next.end = v.end, v.end
	}
	w.publish(next)
	w.cache.interests.each((*Cursor).Wake)
}

var slotSeed = maphash.MakeSeed()

// Apply applies changes in upstream's order and drops repeated changes. The caller passes whole
// revisions (see feed.Batch). If a change does not fit the state, or belongs to a revision that
// readers have already seen, Apply returns [ErrDiverged], and the earlier changes stay applied.
func (w *Writer) Apply(changes []Change, now time.Time) error {
	v := w.filled()
	next := *v
	var err error
	for _, change := range changes {
		if next.repeats(change) {
			continue
		}
		if rv := change.Object.ResourceVersion(); rv == v.rv {
			err = diverged("%s changed at %d, which seemed complete", change.Object.Key(), rv)
			break
		}
		var e Event
		if e, err = next.change(change); err != nil {
			break
		}
		e.at = Moment(now)
		next.append(e)
	}
	w.commit(v, &next, now)
	return err
}

// repeats reports whether the view contains a change already: any change below its resourceVersion.
// At that resourceVersion, the object's state decides, because one revision can contain several
// deletions: etcd deletes all keys of an expired lease at once, and many Events share a lease.
func (v *view) repeats(change Change) bool {
	o := change.Object
	if o.ResourceVersion() != v.rv {
		return o.ResourceVersion() < v.rv
	}
	was := v.tree.Get(o.Key())
	if change.Deleted {
		return was == nil
	}
	return was != nil && was.ResourceVersion() == o.ResourceVersion()
}

func (v *view) change(change Change) (Event, error) {
	o := change.Object
	e := Event{
		Type:   Modified,
		RV:     o.ResourceVersion(),
		Object: o,
	}
	if change.Deleted {
		e.Type = Deleted
		e.after, e.Prev = v.tree.Delete(o.Key())
	} else {
		e.after, e.Prev = v.tree.Set(o)
	}
	switch {
	case e.Prev == nil && change.Deleted:
		return e, diverged("%s deleted at %d was not there", o.Key(), o.ResourceVersion())
	case e.Prev != nil && e.Prev.UID() != o.UID():
		return e, diverged("%s was replaced without a deletion before %d", o.Key(), e.RV)
	case e.Prev == nil:
		e.Type = Added
	}
	return e, nil
}

func (w *Writer) commit(v, next *view, now time.Time) {
	trimmed := *next // cursors that still need trimmed events need marks, too
	trimmed.trim(w.cache.Limits(), now)
	if trimmed.rv >= trimmed.ahead.rv {
		trimmed.ahead, trimmed.passed = Snapshot{}, nil
	}
	same := trimmed.first == v.first && trimmed.end == v.end
	if same && trimmed.rv == v.rv && trimmed.since == v.since {
		return
	}
	w.woken = w.cache.interests.markAndPublish(next, v.end, func() { w.publish(&trimmed) }, w.woken)
	for i, cursor := range w.woken {
		cursor.Wake()
		w.woken[i] = nil
	}
	w.woken = w.woken[:0]
}

func (w *Writer) publish(v *view) {
	if v.aheadSince <= v.rv {
		v.carried = max(v.carried, v.ahead.rv)
	}
	w.cache.view.Store(v)
	w.cache.waiters.Release()
}

// filled returns the published view. Only writers may call it, after the first Reset.
func (w *Writer) filled() *view {
	v := w.cache.view.Load()
	if v == nil {
		panic("BUG: write before Reset")
	}
	return v
}

// Advance records a bookmark: upstream has reached rv without further changes. It drops events
// beyond the age limit, also with 0. Without it, a quiet cache would keep old events.
func (w *Writer) Advance(rv uint64, now time.Time) {
	if v := w.cache.view.Load(); v != nil {
		next := *v
		next.rv = max(v.rv, rv)
		w.commit(v, &next, now)
	}
}

// Distrust drops the log, because its states may be wrong, and the newest state may be wrong, too.
// Watches and exact reads from these states are refused. Open watches that have read the whole log
// continue, others end with [ErrLagged]. Replace or Reset must follow.
func (w *Writer) Distrust() {
	v := w.filled()
	next := *v
	next.segments, next.gaps, next.cost = nil, nil, 0
	next.first, next.since, next.base = v.end, v.rv+1, v.tree
	next.abandoned = max(v.abandoned, v.rv)
	w.publish(&next)
	w.cache.interests.each((*Cursor).Wake)
}

// SetBookmark sets the template for bookmarks.
func (w *Writer) SetBookmark(b *object.Bookmark) { w.cache.bookmark.Store(b) }

// End empties the cache permanently. Cursors and waiters return [ErrEnded].
func (w *Writer) End() {
	w.ending.Do(func() {
		close(w.cache.ended)
		w.cache.view.Store(nil)
		w.cache.interests.each((*Cursor).Wake)
	})
}
