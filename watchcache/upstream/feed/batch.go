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
	// askMost is the longest pause before the next question. Each question without a proof doubles
	// the pause.
	askMost = 5 * time.Second
)

// Batch collects the events of one stream. Events that arrive together are published together,
// so each client's watch wakes up once per batch instead of once per event.
//
// A batch publishes whole revisions only. Every write of kube-apiserver has a revision of its own,
// but etcd deletes all keys of an expired lease at one revision, and up to a thousand Events share
// a lease. A state with half of these deletions must not get the revision as its resourceVersion: a
// client that lists it and watches from there never hears of the other half. So a batch holds back
// the deletions of the last revision until that revision is known to be complete:
//
//   - a later revision or a bookmark has arrived, or
//   - the stream has been quiet for [BatchQuiet], and upstream has no more deletions at the
//     revision (see wholeFunc).
//
// When the stream ends, the held deletions are dropped. The next stream begins after the last
// published revision and delivers them again.
//
// Add, Reached, Publish and Close are called by the goroutine that reads the stream. etcd bounds the
// number of held deletions: a lease of Events has at most a thousand keys.
type Batch struct {
	apply  applyFunc
	whole  wholeFunc
	failed func(error)

	ctx    context.Context //nolint:containedctx // the life of the stream
	stop   context.CancelFunc
	asking sync.WaitGroup
	mu     struct {
		sync.Mutex
		changes  []watchcache.Change
		complete int       // the number of changes whose revisions are complete; the others are held
		last     uint64    // the highest resourceVersion so far
		received time.Time // when changes[0] arrived
		held     time.Time // when the first held change arrived
		arrived  time.Time // when the last held change arrived
		arrivals uint64    // counts the calls of Add
		asks     bool      // the goroutine that asks is running
	}
}

// applyFunc publishes changes. The first of them arrived at received. Calls do not overlap.
type applyFunc func(changes []watchcache.Change, received time.Time) error

// wholeFunc asks upstream whether a revision consists of this number of deletions.
type wholeFunc func(ctx context.Context, rv uint64, deletions int) bool

// NewBatch returns an empty batch. If whole is nil, every event has a revision of its own, and nothing
// is held back. The batch calls whole in a goroutine of its own until Close. If apply then fails,
// it calls failed, which has to end the stream.
func NewBatch(ctx context.Context, apply applyFunc, whole wholeFunc, failed func(error)) *Batch {
	b := &Batch{apply: apply, whole: whole, failed: failed}
	b.ctx, b.stop = context.WithCancel(ctx)
	return b
}

// Close drops the events that are not published.
func (b *Batch) Close() {
	b.stop()
	b.asking.Wait()
}

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
	if b.whole == nil || !c.Deleted {
		b.mu.complete = n + 1
	} else if b.mu.arrived = time.Now(); b.mu.complete == n {
		b.mu.held = b.mu.arrived
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
		b.mu.asks = true
		b.asking.Go(b.ask)
	}
	return err
}

func (b *Batch) publishLocked() error {
	n := b.mu.complete
	if n == 0 {
		return nil
	}
	err := b.apply(b.mu.changes[:n], b.mu.received)
	rest := copy(b.mu.changes, b.mu.changes[n:])
	clear(b.mu.changes[rest:])
	b.mu.changes, b.mu.complete, b.mu.received = b.mu.changes[:rest], 0, b.mu.held
	return err
}

// ask publishes the held deletions once the stream is quiet and upstream has no more deletions at
// their revision. It returns when nothing is held.
func (b *Batch) ask() {
	for pause, next := BatchQuiet, BatchQuiet; client.Sleep(b.ctx, pause); pause = next {
		b.mu.Lock()
		arrivals, rv, held, complete := b.mu.arrivals, b.mu.last, len(b.mu.changes), b.mu.complete
		quiet := time.Since(b.mu.arrived)
		b.mu.asks = held > 0
		b.mu.Unlock()
		switch {
		case held == 0:
			return
		case complete > 0, quiet < BatchQuiet:
			next = max(BatchQuiet-quiet, time.Millisecond)
			continue
		case !b.whole(b.ctx, rv, held):
			next = min(max(2*pause, BatchQuiet), askMost)
			continue
		}
		if err := b.publishHeld(arrivals); err != nil {
			b.failed(err)
			return
		}
	}
}

// publishHeld publishes the held deletions unless more events have arrived.
func (b *Batch) publishHeld(arrivals uint64) error {
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

// askTimeout limits the wait for a response from upstream.
const askTimeout = 5 * time.Second

// counted returns a wholeFunc for a cache. The cache has the state before the revision. Upstream
// counts the objects that are left at the revision, so its response is small. If the revision has
// deleted the whole state, it has no further deletions.
func counted(cache *watchcache.Cache, upstream *client.Client) wholeFunc {
	return func(ctx context.Context, rv uint64, deletions int) bool {
		ctx, cancel := context.WithTimeout(ctx, askTimeout)
		defer cancel()
		before, err := cache.SnapshotAt(cache.Stats().ResourceVersion)
		if err != nil || before.Len() <= deletions {
			return err == nil
		}
		left, err := upstream.CountAt(ctx, cache.Resource(), rv)
		return err == nil && left == before.Len()-deletions
	}
}
