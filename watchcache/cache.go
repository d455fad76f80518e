package watchcache

import (
	"context"
	"errors"
	"fmt"
	"hash/maphash"
	"sync"
	"sync/atomic"
	"time"

	"github.com/watchproxy/watchproxy/watchcache/object"
	"github.com/watchproxy/watchproxy/watchcache/tree"
)

var (
	// ErrNotReady means that the cache has not been filled yet.
	ErrNotReady = errors.New("cache is not filled yet")
	// ErrNoProgress means that a cache is not filled or not up to date, and that upstream gives no
	// sign that it soon will be.
	ErrNoProgress = fmt.Errorf("%w, without progress", ErrNotReady)
	// ErrEnded means that a reader's state was abandoned, because upstream went back in time or the
	// feed stopped. The reader has to start again.
	ErrEnded = errors.New("cache was ended or started anew")
	// ErrLagged means that the log has dropped events that a cursor had not read yet.
	ErrLagged = errors.New("cursor was left behind by the event log")
	// ErrTooOld means that the log does not reach back to the requested resourceVersion.
	ErrTooOld = errors.New("resourceVersion is too old")
	// ErrTooNew means that the cache has not reached the requested resourceVersion.
	ErrTooNew = errors.New("resourceVersion is not reached yet")
	// ErrDiverged means that a change does not fit the cached state. The cache has missed a change,
	// so the writer must list again.
	ErrDiverged = errors.New("cache has diverged from upstream")
)

// Cache is the versioned cache of one resource. The package documentation describes its structure
// and guarantees.
//
// One goroutine at a time may call the writer methods: Reset, Apply, Advance, Distrust, Replace,
// FastForward, Confirm, Carry, Trim, End. Any goroutine may call all other methods at any time.
type Cache struct {
	resource  object.Resource
	limits    atomic.Pointer[Limits]
	view      atomic.Pointer[view] // nil until the first Reset and after End
	interests interests
	waiters   Waiters
	delivered atomic.Uint64
	bookmark  atomic.Pointer[object.Bookmark]
	ended     chan struct{}
	ending    sync.Once
	woken     []*Cursor // the writer's scratch space
}

// New returns an empty cache. It is not ready until its first Reset.
func New(resource object.Resource, limits Limits) *Cache {
	c := &Cache{resource: resource, ended: make(chan struct{})}
	c.SetLimits(limits)
	c.interests.resource = &c.resource
	return c
}

// Limits returns the log's limits.
func (c *Cache) Limits() Limits { return *c.limits.Load() }

// SetLimits changes the log's limits. The next event or [Cache.Trim] drops excess events.
func (c *Cache) SetLimits(l Limits) { c.limits.Store(&l) }

// Resource returns the resource of the cache.
func (c *Cache) Resource() *object.Resource { return &c.resource }

// Bookmark returns the template for bookmarks, or nil if upstream has not sent a bookmark yet.
func (c *Cache) Bookmark() *object.Bookmark { return c.bookmark.Load() }

// SetBookmark sets the template for bookmarks.
func (c *Cache) SetBookmark(b *object.Bookmark) { c.bookmark.Store(b) }

// Snapshot returns the newest state, or [ErrNotReady].
func (c *Cache) Snapshot() (Snapshot, error) {
	v := c.view.Load()
	if v == nil {
		return Snapshot{}, c.notReady()
	}
	return v.newest(), nil
}

func (c *Cache) notReady() error {
	select {
	case <-c.ended:
		return ErrEnded
	default:
		return ErrNotReady
	}
}

// Published returns a channel that the next publication of a state closes.
func (c *Cache) Published() <-chan struct{} { return c.waiters.Wait() }

// WaitFresh waits until the cache is filled and has reached rv, and returns the newest state. If
// ctx ends first, it returns an error that wraps [ErrNotReady] or [ErrTooNew]. With [ErrTooNew], it
// also returns the newest state so far.
func (c *Cache) WaitFresh(ctx context.Context, rv uint64) (Snapshot, error) {
	if v := c.view.Load(); v != nil && v.newest().rv >= rv {
		return v.newest(), nil // the usual case needs no lock
	}
	for {
		// Subscribe before loading the view, so that the loop misses no publication in between.
		published := c.waiters.Wait()
		v := c.view.Load()
		if v != nil && v.newest().rv >= rv {
			return v.newest(), nil
		}
		select {
		case <-published:
		case <-c.ended:
			return Snapshot{}, ErrEnded
		case <-ctx.Done():
			if v == nil {
				return Snapshot{}, fmt.Errorf("%w: %w", ErrNotReady, ctx.Err())
			}
			s := v.newest()
			return s, fmt.Errorf("%w: want %d, have %d: %w", ErrTooNew, rv, s.rv, ctx.Err())
		}
	}
}

// SnapshotAt returns upstream's state at rv. It returns [ErrTooOld] if rv is older than the log or
// lies in a gap. It returns [ErrTooNew] if the log has not reached rv, and [ErrNotReady] if there
// is no state yet.
func (c *Cache) SnapshotAt(rv uint64) (Snapshot, error) {
	v := c.view.Load()
	switch {
	case v == nil:
		return Snapshot{}, c.notReady()
	case rv > v.rv:
		if s, ok := v.before(rv); ok {
			return s, nil
		}
		return Snapshot{}, fmt.Errorf("%w: want %d, have %d", ErrTooNew, rv, v.rv)
	case rv < v.since || v.inGap(rv):
		return Snapshot{}, fmt.Errorf("%w: want %d, have %d and later", ErrTooOld, rv, v.since)
	}
	return Snapshot{v.treeAt(rv), rv, v.epoch}, nil
}

// Change is a change from upstream's watch.
type Change struct {
	Deleted bool
	Object  *object.Object
}

// Reset begins a new epoch with the given state. The objects are sorted by key, and rv is their
// resourceVersion. Cursors of the previous epoch end with [ErrEnded].
func (c *Cache) Reset(objects []*object.Object, rv uint64) {
	next := &view{epoch: 1, rv: rv, tree: c.build(objects), since: rv, first: 1, end: 1}
	next.base = next.tree
	if v := c.view.Load(); v != nil {
		next.epoch = v.epoch + 1
		next.abandoned = max(v.abandoned, v.newest().rv)
		// A cursor that is being opened may have marks from the previous epoch. Sequence numbers
		// continue, so those marks never match new events.
		next.first, next.end = v.end, v.end
	}
	c.publish(next)
	c.interests.each((*Cursor).Wake)
}

var slotSeed = maphash.MakeSeed()

// build returns the tree of a state. At first, the trees of all caches of a resource have the same
// slots.
func (c *Cache) build(objects []*object.Object) tree.Tree {
	return tree.Build(objects, maphash.String(slotSeed, fmt.Sprint(c.resource.GVR, c.resource.Encoding)))
}

// Apply applies changes in upstream's order and drops repeated changes. The caller passes whole
// revisions (see feed.Batch). If a change does not fit the state, or belongs to a revision that
// readers have already seen, Apply returns [ErrDiverged], and the earlier changes stay applied.
func (c *Cache) Apply(changes []Change, now time.Time) error {
	v := c.filled()
	next := *v
	var err error
	for _, change := range changes {
		if next.repeats(change) {
			continue
		}
		if rv := change.Object.ResourceVersion(); rv == v.rv {
			err = fmt.Errorf("%w: %s changed at %d, which seemed complete", ErrDiverged, change.Object.Key(), rv)
			break
		}
		var e Event
		if e, err = next.change(change); err != nil {
			break
		}
		e.at = Moment(now)
		next.append(e)
	}
	c.commit(v, &next, now)
	return err
}

// repeats reports whether the view already contains a change. The view contains every change with a
// resourceVersion below the view's own. At the view's own resourceVersion, the object's state
// decides, because one revision can contain several deletions. For example, etcd deletes all keys
// of an expired lease at once, and in kube-apiserver many Events share a lease.
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

// change applies a change to v's tree and returns the event.
func (v *view) change(change Change) (Event, error) {
	o := change.Object
	e := Event{Type: Modified, RV: o.ResourceVersion(), Object: o}
	if change.Deleted {
		e.Type = Deleted
		e.after, e.Prev = v.tree.Delete(o.Key())
	} else {
		e.after, e.Prev = v.tree.Set(o)
	}
	switch {
	case e.Prev == nil && change.Deleted:
		return e, fmt.Errorf("%w: %s deleted at %d was not there", ErrDiverged, o.Key(), o.ResourceVersion())
	case e.Prev != nil && e.Prev.UID() != o.UID():
		return e, fmt.Errorf("%w: %s was replaced without a deletion before %d", ErrDiverged, o.Key(), o.ResourceVersion())
	case e.Prev == nil:
		e.Type = Added
	}
	return e, nil
}

// commit publishes next, the successor of v, unless nothing has changed. Before publication, it
// marks the cursors that the new events may concern. Afterwards it signals them.
func (c *Cache) commit(v, next *view, now time.Time) {
	trimmed := *next // cursors that still need trimmed events need marks, too
	trimmed.trim(c.Limits(), now)
	if trimmed.rv >= trimmed.ahead.rv {
		trimmed.ahead, trimmed.passed = Snapshot{}, nil
	}
	if trimmed.rv == v.rv && trimmed.end == v.end && trimmed.first == v.first && trimmed.since == v.since {
		return
	}
	c.woken = c.interests.mark(next, v.end, func() { c.publish(&trimmed) }, c.woken)
	for i, cursor := range c.woken {
		cursor.Wake()
		c.woken[i] = nil
	}
	c.woken = c.woken[:0]
}

func (c *Cache) publish(v *view) {
	c.view.Store(v)
	c.waiters.Release()
}

// filled returns the published view. Only writers may call it, after the first Reset.
func (c *Cache) filled() *view {
	v := c.view.Load()
	if v == nil {
		panic("BUG: write before Reset")
	}
	return v
}

// Advance records a bookmark: upstream has reached rv without further changes.
func (c *Cache) Advance(rv uint64, now time.Time) {
	v := c.filled()
	next := *v
	next.rv = max(v.rv, rv)
	c.commit(v, &next, now)
}

// Distrust drops the log, because its states may be wrong, and the newest state may be wrong, too.
// Watches and exact reads from these states are refused. Open watches that have read the whole log
// continue, others end with [ErrLagged]. Replace or Reset must follow.
func (c *Cache) Distrust() {
	v := c.filled()
	next := *v
	next.segments, next.gaps, next.cost = nil, nil, 0
	next.first, next.since, next.base, next.abandoned = v.end, v.rv+1, v.tree, max(v.abandoned, v.rv)
	c.publish(&next)
	c.interests.each((*Cursor).Wake)
}

// Trim drops events beyond the age limit. The writer calls it periodically. Otherwise a quiet cache
// would keep old events.
func (c *Cache) Trim(now time.Time) {
	if v := c.view.Load(); v != nil {
		next := *v
		c.commit(v, &next, now)
	}
}

// End empties the cache permanently. Cursors and waiters return [ErrEnded].
func (c *Cache) End() {
	c.ending.Do(func() {
		close(c.ended)
		c.view.Store(nil)
		c.interests.each((*Cursor).Wake)
	})
}

// Stats is a summary of a cache.
type Stats struct {
	Ready           bool
	Epoch           uint64
	ResourceVersion uint64 // reached by the log
	Newest          uint64 // of the state that readers see; above ResourceVersion after a FastForward
	Since           uint64 // oldest resourceVersion at which a watch can start
	Objects         int
	Bytes           int64 // of the objects' JSON
	LogEvents       int
	LogBytes        int64 // of the memory that only the log keeps alive
	Cursors         int
	Events          uint64 // applied to the cache, in all epochs
	Delivered       uint64 // to all cursors together
}

// Stats returns a summary of the cache.
func (c *Cache) Stats() Stats {
	s := Stats{Cursors: c.interests.len(), Delivered: c.delivered.Load()}
	if v := c.view.Load(); v != nil {
		s.Ready, s.Epoch, s.ResourceVersion, s.Newest, s.Since = true, v.epoch, v.rv, v.newest().rv, v.since
		s.Objects, s.Bytes = v.newest().Len(), v.newest().Bytes()
		s.LogEvents, s.LogBytes, s.Events = int(v.end-v.first), v.cost, v.end-1
	}
	return s
}

// Snapshot is the state of a resource at one resourceVersion. It never changes, and creating it
// costs nothing.
type Snapshot struct {
	tree.Tree
	rv, epoch uint64
}

// ResourceVersion returns the resourceVersion of the snapshot.
func (s Snapshot) ResourceVersion() uint64 { return s.rv }
