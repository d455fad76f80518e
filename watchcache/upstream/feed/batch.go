package feed

import (
	"cmp"
	"context"
	"slices"
	"sync"
	"time"

	"github.com/watchproxy/watchproxy/watchcache"
	"github.com/watchproxy/watchproxy/watchcache/object"
	"github.com/watchproxy/watchproxy/watchcache/upstream/client"
)

const (
	// BatchQuiet is how long a stream must deliver nothing before upstream is asked about the last
	// revision.
	BatchQuiet = 250 * time.Millisecond
	// askMost is the longest pause between questions. Each question without a proof doubles it.
	askMost = 5 * time.Second
)

// Batch collects the events of one stream. Events that arrive together are published together,
// so each client's watch wakes up once per batch instead of once per event.
//
// A batch publishes whole revisions only. Every write of kube-apiserver has a revision of its own,
// but etcd deletes all keys of an expired lease at one revision, and a lease has up to a thousand
// Events. A state with half of these deletions must not get the revision as its resourceVersion: a
// client that lists it and watches from there never hears of the other half. So a batch holds back
// the deletions of the last revision until that revision is known to be complete:
//
//   - a later revision or a bookmark has arrived, or
//   - the stream has been quiet for [BatchQuiet], and upstream has no more deletions at the
//     revision (see [Publisher]).
//
// When the stream ends, the pending deletions are dropped. The next stream begins after the last
// published revision and delivers them again.
//
// Add, Reached, Publish and Close are called by the goroutine that reads the stream.
type Batch struct {
	to     Publisher
	leases bool
	tasks  *tasks // the goroutine that asks
	mu     struct {
		sync.Mutex
		changes  []watchcache.Change
		complete int       // the number of changes of complete revisions; the others are pending
		last     uint64    // the highest resourceVersion so far
		received time.Time // when changes[0] arrived
		pending  time.Time // when the first pending change arrived
		arrived  time.Time // when the last pending change arrived
		arrivals uint64    // counts the calls of Add
		asks     bool      // the goroutine that asks is running
	}
}

// Publisher gets the events of a batch. Only calls of Whole may overlap the others.
type Publisher interface {
	// Apply publishes changes. The first of them arrived at received.
	Apply(changes []watchcache.Change, received time.Time) error
	// Whole asks upstream whether a revision consists of this number of deletions.
	Whole(ctx context.Context, rv uint64, deletions int) bool
	// Interrupt ends the stream after Apply has failed for pending deletions, of which the reader
	// of the stream does not know.
	Interrupt(reason error)
}

// NewBatch returns an empty batch. Without leases, every event has a revision of its own, and
// all are published at once. The batch asks in a goroutine of its own until Close.
func NewBatch(ctx context.Context, to Publisher, leases bool) *Batch {
	return &Batch{
		to:     to,
		leases: leases,
		tasks:  newTasks(ctx),
	}
}

// Close drops the events that are not published.
func (b *Batch) Close() { b.tasks.End() }

// Add adds an event. It returns the number of events that are not published yet.
func (b *Batch) Add(c watchcache.Change) int {
	b.mu.Lock()
	defer b.mu.Unlock()
	n := len(b.mu.changes)
	if n == 0 {
		b.mu.received = time.Now()
	}
	if rv := c.Object.ResourceVersion(); rv > b.mu.last {
		b.mu.complete, b.mu.last = n, rv
	}
	b.mu.changes = append(b.mu.changes, c)
	if !b.leases || !c.Deleted {
		b.mu.complete = n + 1
	} else {
		b.mu.arrived = time.Now()
		if b.mu.complete == n {
			b.mu.pending = b.mu.arrived
		}
	}
	b.mu.arrivals++
	return n + 1
}

// Reached records a bookmark: upstream has sent all events up to rv.
func (b *Batch) Reached(rv uint64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if rv >= b.mu.last {
		b.mu.complete = len(b.mu.changes)
	}
}

// Publish publishes the events of complete revisions.
func (b *Batch) Publish() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	err := b.publishLocked()
	if len(b.mu.changes) > 0 && !b.mu.asks {
		b.mu.asks = b.tasks.Go(b.ask)
	}
	return err
}

func (b *Batch) publishLocked() error {
	n := b.mu.complete
	if n == 0 {
		return nil
	}
	err := b.to.Apply(b.mu.changes[:n], b.mu.received)
	rest := copy(b.mu.changes, b.mu.changes[n:])
	clear(b.mu.changes[rest:])
	b.mu.changes, b.mu.complete, b.mu.received = b.mu.changes[:rest], 0, b.mu.pending
	return err
}

// ask publishes the pending deletions (see Batch). It returns when there are none.
func (b *Batch) ask(ctx context.Context) {
	for pause, next := BatchQuiet, BatchQuiet; client.Sleep(ctx, pause); pause = next {
		b.mu.Lock()
		arrivals, pending, complete := b.mu.arrivals, len(b.mu.changes), b.mu.complete
		rv, quiet := b.mu.last, time.Since(b.mu.arrived)
		b.mu.asks = pending > 0
		b.mu.Unlock()
		switch {
		case pending == 0:
			return
		case complete > 0, quiet < BatchQuiet:
			next = max(BatchQuiet-quiet, time.Millisecond)
			continue
		case !b.to.Whole(ctx, rv, pending):
			next = min(max(2*pause, BatchQuiet), askMost)
			continue
		}
		if err := b.publishPending(arrivals); err != nil {
			b.to.Interrupt(err)
			return
		}
	}
}

func (b *Batch) publishPending(arrivals uint64) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.mu.arrivals != arrivals {
		return nil
	}
	b.mu.complete = len(b.mu.changes)
	return b.publishLocked()
}

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
