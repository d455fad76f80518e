package watch

import (
	"cmp"
	"context"
	"errors"
	"iter"
	"math/rand/v2"
	"sync/atomic"
	"time"

	"github.com/watchproxy/watchproxy/proxy/exchange"
	"github.com/watchproxy/watchproxy/proxy/fair"
	"github.com/watchproxy/watchproxy/proxy/wire"
	"github.com/watchproxy/watchproxy/watchcache"
	"github.com/watchproxy/watchproxy/watchcache/filter"
	"github.com/watchproxy/watchproxy/watchcache/tree"
)

const (
	// Like kube-apiserver, a watch sends a bookmark about once a minute, and shortly before it
	// times out.
	bookmarkEvery     = time.Minute
	bookmarkJitter    = time.Second
	bookmarkBeforeEnd = 2 * time.Second
	// A watch whose client asks for no lifetime gets a random one, between lifetimeFloor and twice
	// that.
	lifetimeFloor = 30 * time.Minute
)

// Params say which events a watch sends and for how long.
type Params struct {
	Cache  *watchcache.Cache
	Cursor *watchcache.Cursor
	Filter *filter.Filter
	Form   wire.Form
	Choice wire.Choice // Form is made from it
	// State walks the state that the watch begins with; nil for none. Meter takes the turns to
	// write the state.
	State func() iter.Seq[tree.Span]
	Meter *fair.Meter
	// Start is the resourceVersion that the watch begins at. Bookmarks are above it.
	Start     uint64
	Bookmarks bool
	// Lifetime is the maximum duration of the watch; 0 means a random one.
	Lifetime time.Duration
	// Review is called at the interval Recheck; 0 means never. If the client is no longer allowed
	// to watch, Review fails with ErrRevoked.
	Review  func(context.Context) error
	Recheck time.Duration
	// Draining ends when the server begins to drain. The watch ends DrainShare later.
	Draining   context.Context //nolint:containedctx // it is the server's
	DrainShare time.Duration
	Unwritable func() // called if an event cannot be written in the form
	Done       func() // called when the watch ends
}

// Watch is one open watch. One goroutine at a time works on it.
type Watch struct {
	Params
	deadline time.Time
	bookmark time.Time // when the next bookmark is due
	recheck  recheck
	ending   bool        // deadline already considers the drain
	alarm    *time.Timer // wakes the watch when something is due
	// maintenanceDue says that there is more to do than to deliver events.
	maintenanceDue atomic.Bool
	unwake         [2]func() bool // stop the wake-ups for a client that leaves and a server that drains
}

// New returns a watch. Call either Run, or Abandon, or Open and Close.
func New(p Params) *Watch {
	w := &Watch{Params: p}
	if p.Review != nil {
		w.recheck = newRecheck(p.Recheck, p.Review)
	}
	return w
}

// Run implements exchange.Stream. It writes the watch until the watch times out, the client leaves,
// the server drains, or the cache cannot go on. In each case the client sees a clean end.
func (w *Watch) Run(ctx context.Context, out *exchange.ChunkWriter) {
	defer w.Close()
	if !w.Open(ctx, out) {
		return
	}
	for {
		on, behind := w.Turn(ctx, out, nil)
		if !on {
			return
		}
		if !behind {
			<-w.Cursor.Ready()
		}
	}
}

// Abandon implements exchange.Stream.
func (w *Watch) Abandon() { w.Close() }

// cheapCost is the highest cost of a filter that a pump evaluates (filter.Filter.Cost).
const cheapCost = 32

// Cheap tells whether a pump may work on the watch. All watches of the pump wait for the filter, so
// clients must not decide how long it takes. A Table may have to wait for a row.
func (w *Watch) Cheap() bool { return w.Filter.Cost() <= cheapCost && !w.Choice.Table }

// Open writes the state that the watch begins with, if any. From then on the cursor wakes the watch
// whenever there is something to do.
func (w *Watch) Open(ctx context.Context, out *exchange.ChunkWriter) bool {
	now := time.Now()
	w.deadline = now.Add(cmp.Or(w.Lifetime, lifetimeFloor+rand.N(lifetimeFloor)))
	w.bookmark = w.nextBookmark(now)
	if w.State != nil {
		to := out.To
		out.To = fair.InTurns(to, w.Meter)
		err := w.writeState(ctx, out)
		if out.To = to; err != nil {
			return false
		}
	}
	w.State, w.Meter = nil, nil
	w.maintenanceDue.Store(true)
	w.recheck.wake = w.wake
	w.unwake[0] = afterFunc(ctx, w.wake)
	w.unwake[1] = context.AfterFunc(w.Draining, w.wake)
	w.alarm = time.AfterFunc(time.Until(w.deadline), w.wake)
	return true
}

// afterFunc does what context.AfterFunc does. That function takes 300 bytes even if the context has
// an AfterFunc of its own.
func afterFunc(ctx context.Context, f func()) (stop func() bool) {
	if own, ok := ctx.(*exchange.Context); ok {
		return own.AfterFunc(f)
	}
	return context.AfterFunc(ctx, f)
}

// wake makes the next turn check everything that may be due.
func (w *Watch) wake() {
	w.maintenanceDue.Store(true)
	w.Cursor.Wake()
}

// Turn delivers new events and does everything else that is due. It tells whether the watch goes
// on, and whether there are more events to deliver. A pump passes scratch space. A caller whose
// writes may block passes none, because it would hold the space during a write.
func (w *Watch) Turn(ctx context.Context, out *exchange.ChunkWriter, s *Scratch) (on, behind bool) {
	due := w.maintenanceDue.Swap(false) // before any check
	position, behind, err := w.deliver(out, s)
	if err != nil {
		w.appendEnd(out, err)
		_ = out.Flush() // writes earlier events
		return false, false
	}
	if !due {
		return out.Flush() == nil, behind
	}
	if !behind { // otherwise upstream may never have had this position
		err = w.appendBookmark(out, position)
	}
	if errors.Join(err, out.Flush()) != nil {
		return false, false
	}
	now := time.Now()
	if !w.recheck.goesOn(ctx, now) { // the client comes back and is refused
		return false, false
	}
	if !w.ending && w.Draining.Err() != nil {
		w.ending = true
		if end := now.Add(w.DrainShare); end.Before(w.deadline) {
			w.deadline = end
		}
	}
	if ctx.Err() != nil || !now.Before(w.deadline) {
		if w.ending && !behind {
			w.finalBookmark(out, position)
		}
		return false, false
	}
	next := w.recheck.next(w.next())
	if behind && !now.Before(next) { // a bookmark waits until the client has caught up
		w.maintenanceDue.Store(true)
	} else {
		w.alarm.Reset(time.Until(next))
	}
	return true, behind
}

// Close releases everything, and waits for a review under way.
func (w *Watch) Close() {
	if w.alarm != nil {
		w.alarm.Stop()
		w.unwake[0]()
		w.unwake[1]()
	}
	w.Cursor.Close()
	w.recheck.stop()
	w.Done()
}

// hasBookmarks tells whether the watch sends periodic bookmarks. Kube-apiserver sends none for
// resources that it watches in etcd.
func (w *Watch) hasBookmarks() bool { return w.Bookmarks && !w.Cache.Resource().NoWatchCache }

// next returns the time at which the watch has something to do even without events.
func (w *Watch) next() time.Time {
	if w.hasBookmarks() && w.bookmark.Before(w.deadline) {
		return w.bookmark
	}
	return w.deadline
}

// nextBookmark returns the time of the next bookmark: after the usual interval or shortly before
// the end, whichever is first.
func (w *Watch) nextBookmark(now time.Time) time.Time {
	regular := now.Add(bookmarkEvery - bookmarkJitter + rand.N(2*bookmarkJitter))
	if last := w.deadline.Add(-bookmarkBeforeEnd); last.After(now) && last.Before(regular) {
		return last
	}
	return regular
}

// appendBookmark adds a bookmark if one is due and its resourceVersion is new.
func (w *Watch) appendBookmark(out *exchange.ChunkWriter, position uint64) error {
	now := time.Now()
	if !w.hasBookmarks() || now.Before(w.bookmark) {
		return nil
	}
	w.bookmark = w.nextBookmark(now)
	if position > w.Start && w.Cache.Bookmark() != nil {
		return w.putBookmark(out, position, false)
	}
	return nil
}

func (w *Watch) putBookmark(out *exchange.ChunkWriter, rv uint64, initialEnd bool) (err error) {
	object := w.Cache.Bookmark().Append(nil, rv, initialEnd)
	buf := out.Pending()
	*buf, err = w.Form.AppendBookmark(*buf, object)
	return err
}

// finalBookmark writes a bookmark before a draining watch ends. The client can then continue at
// another replica from the latest resourceVersion. An older resourceVersion may have expired there.
// The bookmark is sent even if it has nothing new: if a watch ends within a second without an
// event, client-go's informers treat the watch as broken and list again.
func (w *Watch) finalBookmark(out *exchange.ChunkWriter, position uint64) {
	if w.hasBookmarks() && w.Cache.Bookmark() != nil && w.putBookmark(out, max(position, w.Start), false) == nil {
		_ = out.Flush() // the client may be gone
	}
}
