package watchcache

import (
	"fmt"
	"math"
	"sync/atomic"

	"github.com/watchproxy/watchproxy/watchcache/filter"
	"github.com/watchproxy/watchproxy/watchcache/object"
)

// Cursor is one watch's position in the event log. The writer never sends to a cursor and never
// waits for one. Each cursor pulls events at its own speed. A slow reader costs nothing until the
// log has dropped events that the reader still needs.
//
// Why not a channel per watch: a thousand channel buffers hold a thousand copies of the same
// pointers. A full buffer blocks the writer or loses an event, and the writer notices a slow reader
// only when the buffer is full.
//
// # Marks
//
// Before the writer publishes event s, it marks every cursor that s could concern: latest = s, then
// pending = s unless pending already holds an earlier mark. After publishing, it signals the marked
// cursors. A cursor reads in the opposite order:
//
//	v := published view
//	m := swap(pending, none)
//	l := latest
//
// Every event below v.end was marked before v was published. Hence, unless the previous poll
// stopped at its limit, or met the exception C4 below,
//
//	C1 m = none: no event in [next, v.end) concerns the cursor
//	C2 m < v.end: no event in [next, m) concerns the cursor
//	C3 m ≥ v.end: as C1
//
// So a narrow watch looks only at events that could match. While nothing matches, its cursor stays
// at the log's end without reading. There is one exception. While the mark m was set, the writer may
// have marked more events, some of them not published yet. It changed only latest for them, not
// pending. So the poll that takes m must remember them:
//
//	C4 l ≥ v.end: the next poll must look at everything from v.end on
//
// The writer still signals these events after it publishes them.
//
// A Cursor is read by one goroutine. Close it when done.
type Cursor struct {
	cache  *Cache
	filter *filter.Filter
	epoch  uint64
	next   uint64 // the next sequence number to look at
	behind bool   // the next poll must look at everything from next on
	more   bool   // the last poll left events that are in the log
	floor  uint64 // the watch's start if the cache had not reached it; events up to floor are skipped
	passed uint64 // first the watch's start, later the end of the last gap that the cursor has passed
	strict bool   // see WholeHistory

	pending atomic.Uint64 // earliest marked sequence number, 0 for none
	latest  atomic.Uint64 // latest marked sequence number; only the writer sets it
	signal  chan struct{}
	notify  atomic.Pointer[func()] // called instead of sending to signal
	place   int                    // index in its cursorSet, guarded by interests.mu
}

// Delta is an event as one watch sees it through its filter. RV is the resourceVersion that the
// client sees; the client may resume from it at any server. If an object left the selection, Object
// may be its previous version, with an older resourceVersion of its own.
type Delta struct {
	Type   EventType
	RV     uint64
	Object *object.Object
}

// Watch returns a cursor that delivers the changes after the resourceVersion from. This
// resourceVersion may be newer than the cache. Watch fails with [ErrNotReady] or with
// [*TooOldError].
func (c *Cache) Watch(filter *filter.Filter, from uint64) (*Cursor, error) {
	return c.watch(filter, from, 0)
}

// WatchAfter is like Watch from a snapshot's resourceVersion. It also fails with [ErrEnded] if the
// snapshot's epoch is over.
func (c *Cache) WatchAfter(filter *filter.Filter, state Snapshot) (*Cursor, error) {
	return c.watch(filter, state.rv, state.epoch)
}

// watch opens a cursor in the given epoch, or in the current one if epoch is 0.
func (c *Cache) watch(filter *filter.Filter, from, epoch uint64) (*Cursor, error) {
	cursor := &Cursor{cache: c, filter: filter, signal: make(chan struct{}, 1)}
	// Register before loading the view, so that every event that the view lacks gets a mark.
	c.interests.add(cursor)
	v := c.view.Load()
	var err error
	switch {
	case v == nil:
		err = c.notReady()
	case epoch != 0 && epoch != v.epoch:
		err = ErrEnded
	case from < v.since:
		err = &TooOldError{From: from, Oldest: v.since, Gap: from <= v.abandoned}
	case from > v.newest().rv && from <= v.abandoned:
		err = &TooOldError{From: from, Oldest: v.rv, Gap: true}
	case v.inGap(from):
		err = &TooOldError{From: from, Oldest: v.rv, Gap: true}
	}
	if err != nil {
		c.interests.remove(cursor)
		return nil, err
	}
	cursor.epoch, cursor.next, cursor.behind, cursor.passed = v.epoch, v.after(from), true, from
	if from > v.rv {
		cursor.floor = from
	}
	return cursor, nil
}

// WholeHistory makes the cursor fail with [*TooOldError] at a relist's gap. A reader that passes
// the events on to its own clients needs this, because those clients may resume between any two
// events. Call WholeHistory before the first Poll.
func (c *Cursor) WholeHistory() { c.strict = true }

// TooOldError says where the log's history begins. It matches [ErrTooOld].
type TooOldError struct {
	From, Oldest uint64
	// Gap is true if From lies in a relist's gap or in an earlier epoch. The client then has to
	// list, and the watch must not be forwarded.
	Gap bool
}

func (e *TooOldError) Error() string {
	return fmt.Sprintf("too old resource version: %d (%d)", e.From, e.Oldest)
}

// Is makes errors.Is(err, ErrTooOld) true.
func (e *TooOldError) Is(target error) bool { return target == ErrTooOld }

// Ready receives when a poll may return something, including the final error.
func (c *Cursor) Ready() <-chan struct{} { return c.signal }

// Notify makes the cursor call f from now on, instead of sending to Ready. The writer's goroutine
// calls f, so f must not block. The caller must poll once after Notify, for signals that came
// before.
func (c *Cursor) Notify(f func()) { c.notify.Store(&f) }

// Wake makes Ready receive, even if there is nothing to poll. So a reader can wait for other things
// on the same channel. Wake does not block.
func (c *Cursor) Wake() {
	if notify := c.notify.Load(); notify != nil {
		(*notify)()
		return
	}
	select {
	case c.signal <- struct{}{}:
	default:
	}
}

// Poll appends up to limit deltas to into, without waiting. The cursor has delivered all events up
// to position, so the caller may send a bookmark with this resourceVersion. position stays below
// the cursor's start until the cache has reached that start. It does not pass
// the start of a gap until all changes inside the gap are delivered. If Poll returns limit deltas, call it again, because more may follow; otherwise
// wait for Ready. Poll a new cursor before waiting. An error is final. It is [ErrEnded],
// [ErrLagged], or a [*TooOldError] if a relist jumped over the cursor's start or over changes that
// this watch cannot show safely (see Cache.Replace).
func (c *Cursor) Poll(into []Delta, limit int) (deltas []Delta, position uint64, err error) {
	return c.poll(into, bounds{deltas: limit, bytes: math.MaxInt, looks: math.MaxInt})
}

// PollWithin is Poll with a limit in bytes. It stops before the event that would exceed the limit,
// even if that event is the first one. It also stops after pollLooks events, whether or not they
// concern the cursor. [Cursor.More] tells whether it stopped before the end of the log.
func (c *Cursor) PollWithin(into []Delta, limit, bytes int) (deltas []Delta, position uint64, err error) {
	return c.poll(into, bounds{limit, bytes, pollLooks})
}

// More tells whether the last poll stopped before the end of the log.
func (c *Cursor) More() bool { return c.more }

// Err returns nil while the cursor can go on. If the log has ended, or has dropped events that the
// cursor needs, Err returns the error that the next poll would return.
func (c *Cursor) Err() error {
	switch v := c.cache.view.Load(); {
	case v == nil || v.epoch != c.epoch:
		return ErrEnded
	case c.behind && c.next < v.first:
		return ErrLagged
	}
	return nil
}

// pollLooks is the maximum number of events that PollWithin looks at.
const pollLooks = 1024

// EventOverhead is the number of bytes that PollWithin adds to an object's size for the framing of
// its event. The real framing is smaller.
const EventOverhead = 256

// bounds are the limits of a poll.
type bounds struct{ deltas, bytes, looks int }

func (c *Cursor) poll(into []Delta, most bounds) (deltas []Delta, position uint64, err error) {
	v := c.cache.view.Load() // load before pending, and pending before latest: see Marks
	c.more = false
	if v == nil || v.epoch != c.epoch {
		return into, 0, ErrEnded
	}
	if c.strict && v.jumpedSince(c.passed) { // the gap's events may not concern the cursor
		return into, 0, &TooOldError{From: c.passed, Oldest: v.rv, Gap: true}
	}
	mark := c.pending.Swap(0)
	coming := c.latest.Load() >= v.end // C4
	if !c.behind {
		if mark == 0 || mark >= v.end {
			c.next, c.behind = v.end, coming // C1, C3
			return into, v.rv, nil
		}
		c.next = mark // C2
	}
	switch {
	case c.next < v.first:
		return into, 0, ErrLagged
	case v.inGap(c.floor):
		// The log shows deletions in the gap below the start, although they may have happened after
		// it.
		return into, 0, &TooOldError{From: c.floor, Oldest: v.rv}
	}
	before := len(into)
	if into, err = c.look(v, into, most); err != nil {
		return into[:before], 0, err
	}
	c.cache.delivered.Add(uint64(len(into) - before))
	// Below its start, a cursor must look at every event so that it notices a gap.
	c.more = c.next < v.end
	c.behind = c.more || coming || v.rv < c.floor
	if c.more {
		e := v.event(c.next)
		if e.jumped {
			g, _ := v.crossing(e.RV)
			return into, g.after, nil // the next event may have left the selection in the gap
		}
		return into, e.RV - 1, nil // not the last event's RV: the next one may share it
	}
	return into, v.rv, nil
}

// look appends the events from c.next on that concern the cursor.
func (c *Cursor) look(v *view, into []Delta, most bounds) ([]Delta, error) {
	for ; c.next < v.end && most.deltas > 0 && most.looks > 0; c.next++ {
		most.looks--
		e := v.event(c.next)
		if e.RV <= c.floor {
			continue
		}
		if e.jumped && !c.passes(v, e) {
			return into, &TooOldError{From: e.RV - 1, Oldest: v.rv, Gap: true}
		}
		d, ok := c.delta(e)
		if !ok {
			continue
		}
		if most.bytes -= len(d.Object.Item()) + EventOverhead; most.bytes < 0 {
			break
		}
		most.deltas--
		into = append(into, d)
	}
	return into, nil
}

// passes tells whether the cursor may go through the gap that event e enters. The gap's sets (added
// and changed objects) are shown at their own resourceVersions, and the client may resume from any
// of these at another cache. There, an object that the client holds may have left the selection,
// and the other cache's relist would not show that. This can happen to every object that is
// selected both before and after the gap: it may have left the selection and come back in between.
// So only the first set of the gap may be of such an object.
func (c *Cursor) passes(v *view, e *Event) bool {
	g, ok := v.crossing(e.RV)
	if !ok || c.passed == g.before {
		return ok
	}
	if c.filter.Fickle() {
		shown := false
		for seq := c.next; seq < v.end; seq++ {
			e := v.event(seq)
			if e.RV > g.before {
				break
			}
			switch d, ok := c.delta(e); {
			case !ok || d.Type == Deleted:
			case d.Type == Modified && shown:
				return false
			default:
				shown = true
			}
		}
	}
	c.passed = g.before
	return true
}

// Close removes the cursor from its cache. Call it exactly once.
func (c *Cursor) Close() { c.cache.interests.remove(c) }

// delta returns an event as the selection shows it. An object that enters the selection is ADDED;
// an object that leaves it is DELETED. Objects that left the selection in a gap are shown before
// the gap's sets.
func (c *Cursor) delta(e *Event) (Delta, bool) {
	is := e.Type != Deleted && c.filter.Matches(e.Object)
	was := e.Prev != nil && c.filter.Matches(e.Prev)
	switch {
	case e.Type == left:
		return Delta{Deleted, e.RV - 1, e.Prev}, was && !is
	case is && was:
		return Delta{Modified, e.RV, e.Object}, true
	case is:
		return Delta{Added, e.RV, e.Object}, true
	case was && e.Type == Deleted:
		return Delta{Deleted, e.Object.ResourceVersion(), e.Object}, true
	case was && !e.jumped:
		return Delta{Deleted, e.RV, e.Prev}, true
	}
	return Delta{}, false
}
