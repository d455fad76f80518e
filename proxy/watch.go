package proxy

import (
	"context"
	"errors"
	"math"
	"math/rand/v2"
	"net/http"
	"runtime"
	"sync/atomic"
	"time"
	"weak"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/watchproxy/watchproxy/proxy/exchange"
	"github.com/watchproxy/watchproxy/proxy/fair"
	"github.com/watchproxy/watchproxy/proxy/wire"
	"github.com/watchproxy/watchproxy/watchcache"
)

const (
	// bookmarkEvery and bookmarkBeforeEnd are kube-apiserver's: about once a
	// minute, and shortly before the watch times out.
	bookmarkEvery     = time.Minute
	bookmarkJitter    = time.Second
	bookmarkBeforeEnd = 2 * time.Second
	// lifetimeFloor is the shortest of the random lifetimes of a watch whose client
	// asks for none; the longest is twice that.
	lifetimeFloor = 30 * time.Minute
	// feedAgent is the User-Agent of the feeds of a proxy behind this one (upstream.userAgent).
	feedAgent = "watchproxy"
)

// watchable tells whether a watch's parameters ask for what the cache has.
//
//	RV  sendInitialEvents  match         start
//	–   –                  –             the most recent state, then changes
//	–   false              NotOlderThan  changes after the most recent state
//	–   true               NotOlderThan  the most recent state, then changes
//	0   –                  –             the state, then changes
//	0   false              NotOlderThan  changes after the cache's RV
//	0   true               NotOlderThan  the state, then changes
//	N   –                  –             changes after N
//	N   false              NotOlderThan  changes after N
//	N   true               NotOlderThan  a state not older than N, then changes
func (r *read) watchable() bool {
	if r.limit != 0 || r.token != "" {
		return false
	}
	if r.initialEvents != nil {
		return r.match == "NotOlderThan"
	}
	return r.match == ""
}

// withState tells whether the watch begins with the present state.
func (r *read) withState() bool {
	if r.initialEvents != nil {
		return *r.initialEvents
	}
	return r.rv == 0
}

// watching is one open watch. It pulls from the cursor and writes to the client, in a
// goroutine of its own or in the pump's.
type watching struct {
	*read
	cursor     *watchcache.Cursor
	initial    watchcache.Snapshot
	state      bool            // begin with initial
	start      uint64          // bookmarks must be above it
	unwritable func()          // called if an event cannot be written in the form
	draining   context.Context // ends when the server begins to drain
	drainShare time.Duration
	deadline   time.Time
	bookmark   time.Time // when the next one is due
	recheck    recheck
	ending     bool // the end of the drain is in the deadline
	most       int  // how many events are taken from the log at once
	alarm      alarm
	attend     atomic.Bool    // there is something else to do than to deliver events
	unwake     [2]func() bool // when the client has left, and when the server drains
	done       func()         // called at the end
}

// watch answers a watch from the cache.
func (s *Server) watch(ctx context.Context, r *read) (*exchange.Response, error) {
	if r.resource.NoWatchCache && r.rv >= math.MaxInt64 {
		return nil, Beyond // etcd's revisions do not go that far
	}
	w := &watching{read: r, start: r.rv, draining: s.draining, drainShare: s.drainShare()}
	if r.bookmarks && r.withState() && r.cache.Bookmark() == nil {
		return nil, Stale // nobody knows yet what the end of the state looks like
	}
	if _, ok := s.unwritable.Load(weak.Make(r.cache)); ok && r.choice.Partial {
		return nil, Beyond
	}
	w.unwritable = func() { s.noteUnwritable(r.cache) }
	err := w.begin(ctx)
	tooOld, ok := errors.AsType[*watchcache.TooOldError](err)
	tooLarge, ahead := errors.AsType[*tooLargeError](err)
	switch {
	case ahead:
		return w.errorEvent(tooLarge.status()), nil
	case ok && !tooOld.Gap:
		r.tooEarly = w.errorEvent(w.expired(tooOld))
		return nil, Early
	case ok:
		return w.errorEvent(w.expired(tooOld)), nil
	case err != nil:
		if _, ok := errors.AsType[Reason](err); !ok {
			err = Stale
		}
		return nil, err
	}
	if r.Header.Get("User-Agent") == feedAgent {
		w.cursor.WholeHistory()
	}
	if r.Identity != nil {
		w.recheck = newRecheck(s.options.Load().Recheck, func(ctx context.Context) error { return s.reviewAgain(ctx, r) })
	}
	resp := r.respond()
	resp.Header.Set("Content-Type", r.form.StreamType())
	resp.Stream = w
	var refusal *exchange.Response
	if w.done, refusal = s.admitWatch(r.Request); refusal != nil {
		w.cursor.Close()
		return refusal, nil
	}
	return resp, nil
}

// noteUnwritable has metadata watches of a cache forwarded. It does not keep the cache alive.
func (s *Server) noteUnwritable(cache *watchcache.Cache) {
	key := weak.Make(cache)
	if _, known := s.unwritable.LoadOrStore(key, struct{}{}); !known {
		runtime.AddCleanup(cache, func(key weak.Pointer[watchcache.Cache]) { s.unwritable.Delete(key) }, key)
	}
}

// begin waits for the state that the watch starts from and opens the cursor.
func (w *watching) begin(ctx context.Context) (err error) {
	if w.state = w.withState(); w.state || w.rv == 0 {
		if w.initial, err = w.fresh(ctx); err != nil {
			return err
		}
		w.start = w.initial.ResourceVersion()
		w.cursor, err = w.cache.WatchAfter(w.filter, w.initial)
		return err
	}
	w.cursor, err = w.cache.Watch(w.filter, w.start)
	return err
}

// lateMax is how many watches from before a cache's history are forwarded at a time. A cache
// knows less of the past than upstream does, unless a client who came from there began it. But
// upstream keeps what it is given for half an hour. So of many the others are told, as
// kube-apiserver would, that it is too old: listing again costs upstream nothing.
const lateMax = 32

// admitLate takes a place if there is one.
func (s *Server) admitLate() (leave func(), ok bool) {
	if s.late.Add(1) > lateMax {
		s.late.Add(-1)
		return nil, false
	}
	return func() { s.late.Add(-1) }, true
}

// errorEvent answers with a watch that was accepted and consists of one ERROR
// event.
func (w *watching) errorEvent(status metav1.Status) *exchange.Response {
	resp := w.respond()
	resp.Header.Set("Content-Type", w.form.StreamType())
	resp.Told = int(status.Code)
	resp.Stream = &onlyError{w.form, status}
	return resp
}

// onlyError is a watch that consists of an ERROR event.
type onlyError struct {
	form   wire.Form
	status metav1.Status
}

// Run implements Stream.
func (e *onlyError) Run(_ context.Context, out *exchange.ChunkWriter) {
	buf := out.Pending()
	*buf = e.form.AppendError(*buf, &e.status)
	_ = out.Flush() // the watch ends either way
}

// Abandon implements Stream.
func (*onlyError) Abandon() {}

// Run implements Stream. It writes the watch until it times out, the client leaves, the server drains, or the
// cache cannot go on. All of these are a clean end to the client.
//
// Whatever there is to do, it waits for nothing but the cursor: a select over all that
// may happen was an eighth of what a delivery takes. It waits with next to nothing on its
// stack, which the runtime can cut down then.
func (w *watching) Run(ctx context.Context, out *exchange.ChunkWriter) {
	defer w.close()
	if !w.open(ctx, out) {
		return
	}
	for {
		on, behind := w.turn(ctx, out, nil)
		if !on {
			return
		}
		if !behind { // else there is no waiting, but a client that lags is not left out of the rest
			<-w.cursor.Ready()
		}
	}
}

// runBy is Run with a pump that writes to a connection.
func (w *watching) runBy(ctx context.Context, leave context.CancelFunc, p *pump, c *conn, out *exchange.ChunkWriter) {
	defer w.close()
	if w.open(ctx, out) {
		p.serve(ctx, leave, c, w, out)
	}
}

// open writes the state that the watch begins with, if it does, and has the cursor wake
// the watch for all there will be to do.
func (w *watching) open(ctx context.Context, out *exchange.ChunkWriter) bool {
	w.schedule()
	w.most = deltasMax
	if w.state {
		to := out.To
		out.To = fair.InTurns(to, &w.meter)
		err := w.writeState(ctx, out)
		if out.To = to; err != nil {
			return false
		}
	}
	w.initial, w.Request, w.meter = watchcache.Snapshot{}, w.Slim(), fair.Meter{} // they are history
	w.attend.Store(true)
	w.recheck.wake = w.wake
	w.unwake[0] = context.AfterFunc(ctx, w.wake)
	w.unwake[1] = context.AfterFunc(w.draining, w.wake)
	w.alarm = alarm{time.AfterFunc(time.Until(w.deadline), w.wake), w.deadline}
	return true
}

// wake has the next turn look after all that there may be to do.
func (w *watching) wake() {
	w.attend.Store(true)
	w.cursor.Wake()
}

// turn delivers what has happened and does what else there is to do. It tells whether the
// watch goes on, and whether there is more to deliver at once. A write that can take long
// has no scratch space: it would be held all that time.
func (w *watching) turn(ctx context.Context, out *exchange.ChunkWriter, s *scratch) (on, behind bool) {
	attend := w.attend.Swap(false) // before anything is looked at
	position, behind, err := w.deliver(out, s)
	if err != nil {
		w.appendEnd(out, err)
		_ = out.Flush() // what came before
		return false, false
	}
	if !attend {
		return out.Flush() == nil, behind
	}
	if !behind { // else the position may be one that upstream never had
		err = w.appendBookmark(out, position)
	}
	if errors.Join(err, out.Flush()) != nil {
		return false, false
	}
	now := time.Now()
	if !w.recheck.goesOn(ctx, now) { // the client comes back, and is refused
		return false, false
	}
	if !w.ending && w.draining.Err() != nil {
		w.ending = true
		if end := now.Add(w.drainShare); end.Before(w.deadline) {
			w.deadline = end
		}
	}
	if ctx.Err() != nil || !now.Before(w.deadline) {
		if w.ending && !behind {
			w.farewell(out, position)
		}
		return false, false
	}
	next := w.recheck.next(w.next())
	if behind && !now.Before(next) { // a bookmark waits until the client has caught up
		w.attend.Store(true)
	}
	w.alarm.set(next)
	return true, behind
}

// Abandon implements Stream.
func (w *watching) Abandon() { w.close() }

// close lets go of everything. What it has begun has ended when it returns.
func (w *watching) close() {
	if w.alarm.Timer != nil {
		w.alarm.Stop()
		w.unwake[0]()
		w.unwake[1]()
	}
	w.cursor.Close()
	w.recheck.stop()
	w.done()
}

// alarm is a timer that is set when there is something new to set it to.
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
func (w *watching) schedule() {
	now := time.Now()
	lifetime := time.Duration(w.watchSeconds) * time.Second
	if lifetime == 0 {
		lifetime = lifetimeFloor + rand.N(lifetimeFloor)
	}
	w.deadline = now.Add(lifetime)
	w.bookmark = w.nextBookmark(now)
}

// hasBookmarks tells whether there are any from time to time: not of what upstream watches
// in etcd.
func (w *watching) hasBookmarks() bool { return w.bookmarks && !w.resource.NoWatchCache }

// next is when the watch has to do something even if nothing happens.
func (w *watching) next() time.Time {
	if w.hasBookmarks() && w.bookmark.Before(w.deadline) {
		return w.bookmark
	}
	return w.deadline
}

// nextBookmark is when the next bookmark is due: after the usual interval, or
// shortly before the end, whichever comes first.
func (w *watching) nextBookmark(now time.Time) time.Time {
	regular := now.Add(bookmarkEvery - bookmarkJitter + rand.N(2*bookmarkJitter))
	if last := w.deadline.Add(-bookmarkBeforeEnd); last.After(now) && last.Before(regular) {
		return last
	}
	return regular
}

// appendBookmark adds a bookmark if one is due and says anything new.
func (w *watching) appendBookmark(out *exchange.ChunkWriter, position uint64) error {
	now := time.Now()
	if !w.hasBookmarks() || now.Before(w.bookmark) {
		return nil
	}
	w.bookmark = w.nextBookmark(now)
	if position > w.start && w.cache.Bookmark() != nil {
		return w.putBookmark(out, position, false)
	}
	return nil
}

func (w *watching) putBookmark(out *exchange.ChunkWriter, rv uint64, initialEnd bool) (err error) {
	object := w.cache.Bookmark().Append(nil, rv, initialEnd)
	buf := out.Pending()
	*buf, err = w.form.AppendBookmark(*buf, object)
	return err
}

// farewell is a bookmark before the watch ends because the server does, so that the client
// goes on elsewhere from as late as it can: who comes from the distant past may be too late. It is there even if
// it says nothing new: client-go's informers take a watch of less than a second without any event for a
// broken one, and list anew.
func (w *watching) farewell(out *exchange.ChunkWriter, position uint64) {
	if w.hasBookmarks() && w.cache.Bookmark() != nil && w.putBookmark(out, max(position, w.start), false) == nil {
		_ = out.Flush() // the client may be gone
	}
}

// expired says that a watch cannot start where it was asked to.
func (r *read) expired(err *watchcache.TooOldError) metav1.Status {
	message := err.Error()
	if r.resource.NoWatchCache {
		message = "The resourceVersion for the provided watch is too old." // etcd's
	}
	return exchange.Failure(http.StatusGone, metav1.StatusReasonExpired, message)
}

// appendEnd tells why the watch cannot go on, if its client could not find out by coming back:
// the cache began anew, and may get to the client's resourceVersion by another history; or
// a relist jumped over changes that this watch cannot be told.
func (w *watching) appendEnd(out *exchange.ChunkWriter, err error) {
	tooOld, jumped := errors.AsType[*watchcache.TooOldError](err)
	if !jumped {
		now, gone := w.cache.Snapshot()
		if !errors.Is(err, watchcache.ErrEnded) || gone != nil {
			return
		}
		tooOld = &watchcache.TooOldError{From: w.start, Oldest: now.ResourceVersion()}
	}
	status := w.expired(tooOld)
	buf := out.Pending()
	*buf = w.form.AppendError(*buf, &status)
}
