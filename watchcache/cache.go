package watchcache

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"

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

func diverged(format string, args ...any) error {
	return fmt.Errorf("%w: "+format, slices.Insert(args, 0, any(ErrDiverged))...)
}

// Cache is the versioned cache of one resource. Any goroutine may call its methods at any time.
// Only its [Writer] changes the state.
type Cache struct {
	resource  object.Resource
	limits    atomic.Pointer[Limits]
	view      atomic.Pointer[view] // nil until the first Reset and after End
	interests interests
	waiters   Waiters
	delivered atomic.Uint64
	bookmark  atomic.Pointer[object.Bookmark]
	ended     chan struct{}
	writer    Writer

	Notes sync.Map // what readers remember of the cache, by keys of their own
}

// New returns an empty cache. It is not ready until its first Reset.
func New(resource object.Resource, limits Limits) *Cache {
	c := &Cache{resource: resource, ended: make(chan struct{})}
	c.SetLimits(limits)
	c.interests.resource = &c.resource
	c.interests.mu.cursors = map[object.Interest]*cursorSet{}
	c.interests.mu.fields = map[int]int{}
	c.interests.mu.ahead = map[*Cursor]struct{}{}
	c.writer.cache = c
	return c
}

// Limits returns the log's limits.
func (c *Cache) Limits() Limits { return *c.limits.Load() }

// SetLimits changes the log's limits. The next event or [Writer.Advance] drops excess events.
func (c *Cache) SetLimits(l Limits) { c.limits.Store(&l) }

// Writer returns the only writer of the cache.
func (c *Cache) Writer() *Writer { return &c.writer }

// Resource returns the resource of the cache.
func (c *Cache) Resource() *object.Resource { return &c.resource }

// Bookmark returns the template for bookmarks, or nil if upstream has not sent a bookmark yet.
func (c *Cache) Bookmark() *object.Bookmark { return c.bookmark.Load() }

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

// SnapshotAt returns upstream's state at rv, or an error: [ErrTooOld] if rv is older than the log
// or lies in a gap, [ErrTooNew], or [ErrNotReady].
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

// Stats is a summary of a cache.
type Stats struct {
	Ready           bool
	Epoch           uint64
	ResourceVersion uint64 // reached by the log
	Newest          uint64 // of the state that readers see, after a FastForward a newer one
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
		newest := v.newest()
		s.Ready, s.Epoch, s.ResourceVersion, s.Since = true, v.epoch, v.rv, v.since
		s.Newest, s.Objects, s.Bytes = newest.rv, newest.Len(), newest.Bytes()
		s.LogEvents, s.LogBytes, s.Events = int(v.end-v.first), v.cost, v.end-1
	}
	return s
}

// Snapshot is the state of a resource at one resourceVersion. It never changes.
type Snapshot struct {
	tree.Tree
	rv, epoch uint64
}

// ResourceVersion returns the resourceVersion of the snapshot.
func (s Snapshot) ResourceVersion() uint64 { return s.rv }
