package watch

import (
	"cmp"
	"context"
	"iter"
	"math/rand/v2"
	"sync/atomic"
	"time"

	"github.com/watchproxy/watchproxy/proxy/derived"
	"github.com/watchproxy/watchproxy/proxy/exchange"
	"github.com/watchproxy/watchproxy/proxy/fair"
	"github.com/watchproxy/watchproxy/proxy/grants"
	"github.com/watchproxy/watchproxy/proxy/wire"
	"github.com/watchproxy/watchproxy/watchcache"
	"github.com/watchproxy/watchproxy/watchcache/object"
	"github.com/watchproxy/watchproxy/watchcache/tree"
)

const (
	// Like kube-apiserver, a watch sends a bookmark about once a minute, and shortly before it
	// times out.
	bookmarkEvery     = time.Minute
	bookmarkJitter    = time.Second
	bookmarkBeforeEnd = 2 * time.Second
	// bookmarkAgain is the pause before a bookmark at the end is tried again because its
	// resourceVersion would not be new. A proxy in front waits for this bookmark while the cache
	// here is being proved up to date.
	bookmarkAgain = bookmarkBeforeEnd / 4
	// lifetimeFloor is the minimum lifetime of a watch whose client asks for no lifetime. Such a
	// watch has a random lifetime of up to twice lifetimeFloor.
	lifetimeFloor = 30 * time.Minute
)

// Plan is what a watch shows, in which form, and for how long.
type Plan struct {
	Filter *object.Filter
	Form   wire.Form
	Choice wire.Choice // the choice from which Form was made
	// Cost is the cost of making an event, for each byte of its object.
	Cost int64
	// Start is the resourceVersion at which the watch begins. Bookmarks are above it.
	Start     uint64
	Bookmarks bool
	// Compressed makes the watch one gzip member.
	Compressed bool
	// Anew means that the client cannot resume the watch, so that it must begin with the state again.
	Anew bool
	// Lifetime is the maximum duration of the watch; 0 means a random one. The watch ends DrainShare
	// after the server begins to drain.
	Lifetime, DrainShare time.Duration
	// Recheck is the interval between reviews of the client's right to watch; 0 means no reviews.
	Recheck time.Duration
}

// Feed is where a watch gets its events.
type Feed struct {
	Cache  *watchcache.Cache
	Cursor *watchcache.Cursor
	// State walks the initial state of the watch; nil for none. Before each part of it is written,
	// the watch waits in Meter, which shares the processors fairly between users. So do the events of
	// Tables, which no other watch can use.
	State iter.Seq[tree.Span]
	Meter *fair.Meter
	// Derived has the parts of a compressed state that watches share; nil if this one shares none.
	Derived *derived.Store
	Rows    Rows // of a Table
	Room    Room // for the copies of large events
	// Grants are the namespaces that the client may read; nil for all.
	Grants *grants.Watch
	Lag    *Lag // counts the lags of deliveries; nil for no counts
}

// Rows are the rows of a Table.
type Rows interface {
	// AwaitLate waits for the row of an object at a resourceVersion.
	AwaitLate(rv uint64) (there bool)
}

// Room has memory for large events that only one watch has.
type Room interface {
	Hold(size int64) (release func(), err error)
}

// Server is what all watches of a server share.
type Server struct {
	Events   *Events          // nil if no event is shared
	Draining context.Context  //nolint:containedctx // ends when the server begins to drain
	Panicked func(reason any) // called if a review panics
}

// Params are all that a watch needs.
type Params struct {
	Plan
	Feed
	Server
	// Review checks that the client may still watch. If access was revoked, it fails with
	// exchange.ErrRevoked.
	Review     func(context.Context) error
	Unwritable func() // called if an event cannot be written in the form
	Done       func() // called when the watch ends
}

// Watch is one open watch. One goroutine at a time works on it.
type Watch struct {
	Params
	deadline time.Time
	bookmark time.Time // time of the next bookmark
	recheck  recheck
	member   *member     // nil if the watch is not compressed
	opened   int64       // the moment after which lags count
	reason   string      // why the watch ended
	sent     uint64      // bytes that Lag has counted
	slow     bool        // events have waited for the client to read
	ending   bool        // deadline already includes the drain
	late     bool        // rows of the state are late
	waits    bool        // for a decision of Grants
	alarm    *time.Timer // wakes the watch when something is due
	// maintenanceDue is set when there may be work other than the delivery of events.
	maintenanceDue atomic.Bool
	unwake         [2]func() bool // cancel the wake-ups for a leaving client and a drain
}

// New returns a watch. The caller must call either Run, or Abandon, or Open and Close.
func New(p Params) *Watch {
	w := &Watch{Params: p}
	if p.Review != nil {
		w.recheck = newRecheck(p.Recheck, p.Review, p.Panicked)
	}
	return w
}

// Run implements exchange.Stream. It writes the watch until the watch times out, the client leaves,
// the server drains, or the cache cannot continue. In each case the response ends cleanly.
func (w *Watch) Run(ctx context.Context, out *exchange.ChunkWriter) {
	defer w.Close()
	if !w.Open(ctx, out) {
		return
	}
	for {
		on, behind := w.Step(ctx, out, nil)
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

// cheapCost is the maximum cost of a filter that a pump evaluates (object.Filter.Cost).
const cheapCost = 32

// Cheap reports whether a pump may work on the watch. All other watches of the pump wait while the
// filter runs, so clients must not control the time that it takes. A Table may have to wait for a
// row.
func (w *Watch) Cheap() bool { return w.Filter.Cost() <= cheapCost && !w.Choice.Table }

// Open writes the initial state of the watch, if any. After that, the cursor wakes the watch
// whenever there is work.
func (w *Watch) Open(ctx context.Context, out *exchange.ChunkWriter) bool {
	now := time.Now()
	w.deadline = now.Add(cmp.Or(w.Lifetime, lifetimeFloor+rand.N(lifetimeFloor)))
	w.bookmark = w.nextBookmark(now)
	if w.Compressed {
		w.compress(out)
	}
	w.recheck.wake = w.wake
	if w.Grants != nil {
		w.Grants.Notify(w.wake)
	}
	if w.State != nil {
		to := out.To
		out.To = fair.InTurns(to, w.Meter)
		err := w.writeState(ctx, out)
		if err != nil && w.member != nil {
			w.member.end()
		}
		w.countSent(out)
		if out.To = to; err != nil {
			w.Broken(err)
			return false
		}
	}
	w.State, w.Derived = nil, nil
	if w.Choice.Table {
		w.Meter.End() // events are not refused
	} else {
		w.Meter = nil
	}
	w.opened = watchcache.Moment(time.Now())
	w.maintenanceDue.Store(true)
	w.unwake[0] = exchange.AfterFunc(ctx, w.wake)
	w.unwake[1] = context.AfterFunc(w.Draining, w.wake)
	w.alarm = time.AfterFunc(time.Until(w.deadline), w.wake)
	return true
}

// wake makes the next step check all deadlines.
func (w *Watch) wake() {
	w.maintenanceDue.Store(true)
	w.Cursor.Wake()
}

// Step delivers new events and does all other work that is due. It reports whether the watch
// continues, and whether there are more events to deliver. A pump passes scratch space. A caller
// whose writes may block passes nil, because a blocked write would keep the space in use.
func (w *Watch) Step(ctx context.Context, out *exchange.ChunkWriter, s *Scratch) (on, behind bool) {
	if s == nil {
		return w.waitingStep(ctx, out)
	}
	on, behind = w.step(ctx, out, s, &s.late)
	if w.Lag != nil {
		s.late.sent(w.Lag, out.Sent-w.sent)
		w.sent = out.Sent
	}
	return on, behind
}

func (w *Watch) countSent(out *exchange.ChunkWriter) {
	if w.Lag != nil {
		w.Lag.Bytes.Add(out.Sent - w.sent)
		w.sent = out.Sent
	}
}

// waitingStep is a step whose writes may wait for the client. If a write waits, the step's events
// count as slow.
func (w *Watch) waitingStep(ctx context.Context, out *exchange.ChunkWriter) (on, behind bool) {
	var late lateRuns
	waits := &waits{to: out.To}
	out.To = waits
	on, behind = w.step(ctx, out, nil, &late)
	out.To = waits.to
	if late.n > 0 {
		if !w.slow && waits.took >= slowWrites {
			w.slow = true
			for i := range late.n {
				late.runs[i].to = &w.Lag.Slow
			}
		}
		late.countAt(time.Now())
	}
	w.countSent(out)
	w.slow = w.slow && behind
	return on, behind
}

// ClientWaited records that events have waited because the client had not read earlier bytes. Until
// the watch has caught up, its deliveries count as slow. ClientWaited must be called in the
// goroutine that works on the watch.
func (w *Watch) ClientWaited() { w.slow = true }

func (w *Watch) step(ctx context.Context, out *exchange.ChunkWriter, s *Scratch, late *lateRuns) (on, behind bool) {
	on, behind = w.work(ctx, out, s, late)
	if !on && w.member != nil {
		w.member.end()
	}
	return on, behind && !w.waits
}

func (w *Watch) work(ctx context.Context, out *exchange.ChunkWriter, s *Scratch, late *lateRuns) (on, behind bool) {
	due := w.maintenanceDue.Swap(false) // must come before all checks
	position, behind, err := w.deliver(out, s, late)
	if s != nil {
		w.slow = w.slow && behind
	}
	if err != nil {
		w.Broken(err)
		w.appendEnd(w.plain(out), err)
		_ = w.flushAll(out) // writes earlier events
		return false, false
	}
	if !due {
		return w.flush(out), behind
	}
	// While the watch is behind, upstream may never have had a state at this position.
	if !behind && w.appendBookmark(w.plain(out), position) != nil {
		w.ends(endUnwritable)
		_ = w.flushAll(out)
		return false, false
	}
	if !w.flush(out) {
		return false, false
	}
	now := time.Now()
	if !w.recheck.goesOn(ctx, now) { // the client then opens another watch and is refused
		w.ends(endRevoked)
		return false, false
	}
	if !w.ending && w.Draining.Err() != nil {
		w.ending = true
		if end := now.Add(w.DrainShare); end.Before(w.deadline) {
			w.deadline = end
		}
	}
	if ctx.Err() != nil || !now.Before(w.deadline) {
		switch {
		case ctx.Err() != nil:
			w.ends(endClient)
		case w.ending:
			w.ends(endDrain)
		default:
			w.ends(endTimeout)
		}
		switch {
		case w.Anew && w.Bookmarks && ctx.Err() == nil: // otherwise the client would try to resume
			w.appendEnd(w.plain(out), errAnew)
			_ = w.flushAll(out)
		case behind && ctx.Err() == nil:
			w.appendEnd(w.plain(out), watchcache.ErrLagged)
			_ = w.flushAll(out) // the client may be gone
		case w.ending && !behind:
			w.finalBookmark(out, position)
		}
		return false, false
	}
	next := w.recheck.next(w.next())
	switch {
	case w.waits: // so does the bookmark
		w.alarm.Reset(time.Until(w.recheck.next(w.deadline)))
	case behind && !now.Before(next): // the bookmark waits until the client has caught up
		w.maintenanceDue.Store(true)
	default:
		w.alarm.Reset(time.Until(next))
	}
	return true, behind
}

// flush writes pending bytes and reports whether the watch continues.
func (w *Watch) flush(out *exchange.ChunkWriter) bool {
	err := w.flushAll(out)
	if err != nil {
		w.Broken(err)
	}
	return err == nil
}

// flushAll writes all pending bytes.
func (w *Watch) flushAll(out *exchange.ChunkWriter) error {
	if w.member != nil {
		if err := w.member.plain.Flush(); err != nil {
			return err
		}
	}
	return out.Flush()
}

// Close releases all resources. It waits for a running review.
func (w *Watch) Close() {
	if w.alarm != nil {
		w.alarm.Stop()
		w.unwake[0]()
		w.unwake[1]()
	}
	if w.Grants != nil {
		w.Grants.Close()
	}
	w.Cursor.Close()
	w.Meter.ReleaseSlot() // after a panic
	w.recheck.stop()
	w.Done()
}

// hasBookmarks reports whether the watch sends periodic bookmarks. Kube-apiserver sends none for
// resources that it watches in etcd.
func (w *Watch) hasBookmarks() bool { return w.Bookmarks && !w.Cache.Resource().NoWatchCache }

// next returns the time at which the watch has work even without events.
func (w *Watch) next() time.Time {
	if w.hasBookmarks() && w.bookmark.Before(w.deadline) {
		return w.bookmark
	}
	return w.deadline
}

// nextBookmark returns the time of the next bookmark. This is the usual interval from now, or
// shortly before the deadline, whichever is earlier.
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
	if !now.Before(w.deadline.Add(-bookmarkBeforeEnd)) {
		w.bookmark = now.Add(bookmarkAgain)
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
// The bookmark is sent even if its resourceVersion is not new. If a watch ends within a second
// without an event, client-go's informers treat the watch as broken and list again.
func (w *Watch) finalBookmark(out *exchange.ChunkWriter, position uint64) {
	if w.hasBookmarks() && w.Cache.Bookmark() != nil && w.putBookmark(w.plain(out), max(position, w.Start), false) == nil {
		_ = w.flushAll(out) // the client may be gone
	}
}
