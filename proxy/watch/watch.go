package watch

import (
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
	// bookmarkEvery and bookmarkBeforeEnd are kube-apiserver's: about once a minute, and shortly
	// before the watch times out.
	bookmarkEvery     = time.Minute
	bookmarkJitter    = time.Second
	bookmarkBeforeEnd = 2 * time.Second
	// lifetimeFloor is the shortest random lifetime of a watch whose client asks for none; the
	// longest is twice that.
	lifetimeFloor = 30 * time.Minute
)

// Params say what a watch shows and for how long.
type Params struct {
	Cache  *watchcache.Cache
	Cursor *watchcache.Cursor
	Filter *filter.Filter
	Form   wire.Form
	Choice wire.Choice // that the form was made of
	// State walks the state that the watch begins with. It is nil if the watch has none. Meter gives
	// the turns to write it.
	State func() iter.Seq[tree.Span]
	Meter *fair.Meter
	// Start is the resourceVersion that the watch begins at. Bookmarks are above it.
	Start     uint64
	Bookmarks bool
	// Lifetime is when the watch ends; 0 is after a random time.
	Lifetime time.Duration
	// Review asks each Recheck whether the client still may watch; 0 is never. It fails with
	// ErrRevoked if the client may not.
	Review  func(context.Context) error
	Recheck time.Duration
	// Draining ends when the server begins to drain. The watch ends DrainShare later.
	Draining   context.Context //nolint:containedctx // it is the server's
	DrainShare time.Duration
	Unwritable func() // called if an event cannot be written in the form
	Done       func() // called at the end
}

// Watch is one open watch. One goroutine at a time works on it.
type Watch struct {
	Params
	deadline time.Time
	bookmark time.Time // when the next one is due
	recheck  recheck
	ending   bool // the end of the drain is in the deadline
	alarm    alarm
	// maintenanceDue tells that there is something else to do than to deliver events.
	maintenanceDue atomic.Bool
	unwake         [2]func() bool // when the client has left, and when the server drains
}

// New returns a watch. Either Run or Abandon has to be called, or Open and Close.
func New(p Params) *Watch {
	w := &Watch{Params: p}
	if p.Review != nil {
		w.recheck = newRecheck(p.Recheck, p.Review)
	}
	return w
}

// Run implements exchange.Stream. It writes the watch until it times out, the client leaves, the
// server drains, or the cache cannot go on. To the client each of these is a clean end.
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

// cheapCost is what a filter may cost for a pump to evaluate it (filter.Filter.Cost).
const cheapCost = 32

// Cheap tells whether a pump may evaluate the filter. All watches of the pump wait for it, so clients
// must not decide how long that takes.
func (w *Watch) Cheap() bool { return w.Filter.Cost() <= cheapCost }

// Open writes the state that the watch begins with, if any. From then on the cursor wakes the watch
// for all there is to do.
func (w *Watch) Open(ctx context.Context, out *exchange.ChunkWriter) bool {
	w.schedule()
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
	w.unwake[0] = context.AfterFunc(ctx, w.wake)
	w.unwake[1] = context.AfterFunc(w.Draining, w.wake)
	w.alarm = alarm{time.AfterFunc(time.Until(w.deadline), w.wake), w.deadline}
	return true
}

// wake has the next turn look after all that there may be to do.
func (w *Watch) wake() {
	w.maintenanceDue.Store(true)
	w.Cursor.Wake()
}

// Turn delivers what has happened and does what else is due. It tells whether the watch goes on, and
// whether there is more to deliver at once. A pump has scratch space. A caller whose writes may block
// has none, because it would hold the space all that time.
func (w *Watch) Turn(ctx context.Context, out *exchange.ChunkWriter, s *Scratch) (on, behind bool) {
	due := w.maintenanceDue.Swap(false) // before anything is looked at
	position, behind, err := w.deliver(out, s)
	if err != nil {
		w.appendEnd(out, err)
		_ = out.Flush() // what came before
		return false, false
	}
	if !due {
		return out.Flush() == nil, behind
	}
	if !behind { // else upstream may never have had the position
		err = w.appendBookmark(out, position)
	}
	if errors.Join(err, out.Flush()) != nil {
		return false, false
	}
	now := time.Now()
	if !w.recheck.goesOn(ctx, now) { // the client comes back, and is refused
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
	}
	w.alarm.set(next)
	return true, behind
}

// Close releases everything. Whatever the watch began has ended when it returns.
func (w *Watch) Close() {
	if w.alarm.Timer != nil {
		w.alarm.Stop()
		w.unwake[0]()
		w.unwake[1]()
	}
	w.Cursor.Close()
	w.recheck.stop()
	w.Done()
}

// alarm is a timer that is reset only to another time.
type alarm struct {
	*time.Timer
	at time.Time
}

func (a *alarm) set(at time.Time) {
	if !at.Equal(a.at) {
		a.at = at
		a.Reset(time.Until(at))
	}
}

// schedule sets the times at which something is due.
func (w *Watch) schedule() {
	now := time.Now()
	lifetime := w.Lifetime
	if lifetime == 0 {
		lifetime = lifetimeFloor + rand.N(lifetimeFloor)
	}
	w.deadline = now.Add(lifetime)
	w.bookmark = w.nextBookmark(now)
}

// hasBookmarks tells whether bookmarks come from time to time. Kube-apiserver sends none for
// resources that it watches in etcd.
func (w *Watch) hasBookmarks() bool { return w.Bookmarks && !w.Cache.Resource().NoWatchCache }

// next is when the watch has to do something even if nothing happens.
func (w *Watch) next() time.Time {
	if w.hasBookmarks() && w.bookmark.Before(w.deadline) {
		return w.bookmark
	}
	return w.deadline
}

// nextBookmark is when the next bookmark is due: after the usual interval or shortly before the end,
// whichever comes first.
func (w *Watch) nextBookmark(now time.Time) time.Time {
	regular := now.Add(bookmarkEvery - bookmarkJitter + rand.N(2*bookmarkJitter))
	if last := w.deadline.Add(-bookmarkBeforeEnd); last.After(now) && last.Before(regular) {
		return last
	}
	return regular
}

// appendBookmark adds a bookmark if one is due and says anything new.
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

// finalBookmark precedes the end of a watch that drains. The client can then go on elsewhere from the
// latest resourceVersion; an old one may be too old there. The bookmark is sent even if it says nothing
// new: client-go's informers take a watch of less than a second without any event for a broken one, and
// list again.
func (w *Watch) finalBookmark(out *exchange.ChunkWriter, position uint64) {
	if w.hasBookmarks() && w.Cache.Bookmark() != nil && w.putBookmark(out, max(position, w.Start), false) == nil {
		_ = out.Flush() // the client may be gone
	}
}
