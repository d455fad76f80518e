package watch

import (
	"context"
	"time"

	"github.com/watchproxy/watchproxy/proxy/exchange"
	"github.com/watchproxy/watchproxy/proxy/fair"
	"github.com/watchproxy/watchproxy/proxy/grants"
	"github.com/watchproxy/watchproxy/proxy/wire"
	"github.com/watchproxy/watchproxy/watchcache"
	"github.com/watchproxy/watchproxy/watchcache/object"
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
	// Anew means that the client cannot resume the watch, so it must begin with the state again.
	Anew bool
	// Lifetime is the maximum duration of the watch; 0 means a random one. The watch ends
	// DrainShare after the server begins to drain.
	Lifetime, DrainShare time.Duration
	// Recheck is the interval between reviews of the client's right to watch; 0 means no reviews.
	Recheck time.Duration
}

// Feed is where a watch gets its events.
type Feed struct {
	Cache   *watchcache.Cache
	Cursor  *watchcache.Cursor
	Initial *Initial // nil for no initial state
	// Meter shares the processors fairly between users. A watch waits in it before each part of the
	// initial state, and before each event of a Table, which no other watch can use.
	Meter *fair.Meter
	Rows  Rows // of a Table
	Room  Room // for the copies of large events
	// Grants are the namespaces that the client may read; nil for all.
	Grants *grants.Watch
	Lag    *Lag // counts the lags of deliveries
}

// Rows are the rows of a Table.
type Rows interface {
	// AwaitLate waits for the row of an object at a resourceVersion.
	AwaitLate(rv uint64) (there bool)
}

// Room has memory for the copies of large events.
type Room interface {
	Hold(size int64) error
	Free(size int64)
}

// Server is what all watches of a server share.
type Server struct {
	Events   *Events         // nil if no event is shared
	Draining context.Context //nolint:containedctx // ends when the server begins to drain
}

// Owner is who opened a watch.
type Owner interface {
	// Review checks that the client may still watch. If access was revoked, it fails with
	// exchange.ErrRevoked. Every other error means that nobody has decided.
	Review(ctx context.Context) error
	// Unwritable is called if an event cannot be written in the form.
	Unwritable()
	// Done is called when the watch ends.
	Done()
}

// Auditor is told when a watch has ended.
type Auditor interface{ WatchEnded() }

// Params are all that a watch needs.
type Params struct {
	Plan
	Feed
	Server
	Owner Owner // nil if nobody has to know
}

// Watch is one open watch. One goroutine at a time works on it.
type Watch struct {
	Audit    Auditor // nil for none
	plan     Plan
	cache    *watchcache.Cache
	initial  *Initial // until it is written
	place    place
	encoder  encoder
	schedule schedule
	recheck  recheck
	alarm    alarm
	lags     lags
	owner    Owner
	reason   string // why the watch ended; the first reason counts
}

// New returns a watch. The caller must call either Run, or Abandon, or Open and Close.
func New(p Params) *Watch {
	w := &Watch{
		plan:    p.Plan,
		cache:   p.Cache,
		initial: p.Initial,
		place:   place{cursor: p.Cursor, grants: p.Grants},
		encoder: encoder{
			meter:  p.Meter,
			rows:   p.Rows,
			room:   p.Room,
			shared: p.Events,
		},
		schedule: schedule{draining: p.Draining},
		alarm:    alarm{cursor: p.Cursor},
		lags:     lags{of: p.Lag},
		owner:    p.Owner,
	}
	w.encoder.plan = &w.plan
	if p.Recheck > 0 {
		w.recheck = newRecheck(p.Recheck, p.Owner, &w.alarm)
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
			<-w.place.cursor.Ready()
		}
	}
}

// Abandon implements exchange.Stream.
func (w *Watch) Abandon() { w.Close() }

// cheapCost is the maximum cost of a filter that a pump evaluates (object.Filter.Cost).
const cheapCost = 32

// Cheap reports whether a pump may work on the watch. All other watches of the pump wait while the
// filter runs, so clients must not control its time. A Table may have to wait for a row.
func (w *Watch) Cheap() bool { return w.plan.Filter.Cost() <= cheapCost && !w.plan.Choice.Table }

// Notify makes the watch call f when there may be work (see watchcache.Cursor.Notify).
func (w *Watch) Notify(f func()) { w.place.cursor.Notify(f) }

// Open writes the initial state, if any. From then on, the cursor wakes the watch for work.
func (w *Watch) Open(ctx context.Context, out *exchange.ChunkWriter) bool {
	now := time.Now()
	w.schedule.begin(now, &w.plan, !w.cache.Resource().NoWatchCache)
	if w.plan.Compressed {
		w.encoder.member = newMember(out)
	}
	if w.place.grants != nil {
		w.place.grants.Notify(&w.alarm)
	}
	if w.initial != nil {
		to := out.To
		out.To = fair.InTurns(to, w.encoder.meter)
		err := w.writeState(ctx, out)
		if err != nil {
			w.encoder.member.end()
		}
		w.lags.of.Bytes.Add(w.lags.takeSent(out))
		out.To = to
		if err != nil {
			w.Broken(err)
			return false
		}
	}
	w.initial = nil
	if w.plan.Choice.Table {
		w.encoder.meter.End() // events are not refused
	} else {
		w.encoder.meter = nil
	}
	w.lags.opened = watchcache.Moment(time.Now())
	w.alarm.start(ctx, w.schedule.draining, w.schedule.deadline)
	return true
}

// Close releases all resources. It waits for a running review.
func (w *Watch) Close() {
	w.alarm.stop()
	w.place.close()
	w.encoder.meter.ReleaseSlot() // after a panic
	w.recheck.stop()
	if w.owner != nil {
		w.owner.Done()
	}
	if w.Audit != nil {
		w.Audit.WatchEnded()
	}
}
