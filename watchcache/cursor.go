package watchcache

import (
	"fmt"
	"math"
	"sync/atomic"

	"github.com/watchproxy/watchproxy/watchcache/object"
)

// Cursor is one watch's position in the event log. The writer never sends to
// it and never waits for it: the cursor pulls, at its own speed. A slow reader
// costs nothing until the log has left it behind.
//
// Why not a channel per watch: a thousand buffers hold a thousand copies of the
// same pointers, a full one stalls the writer or loses an event, and who is slow
// is known only when it is too late.
//
// # Marks
//
// Before the writer publishes event s, it marks every cursor that s could
// concern: latest = s, then pending = s, unless an earlier mark stands. After
// publishing it signals those that it marked. A cursor reads in the opposite
// order:
//
//	v := published view
//	m := swap(pending, none)
//	l := latest
//
// Every event below v.end was marked before v was published. Hence, unless the
// poll before left something behind (C4),
//
//	C1 m = none: no event in [next, v.end) concerns the cursor
//	C2 m < v.end: no event in [next, m) concerns it
//	C3 m ≥ v.end: as C1
//
// so a narrowed watch stands at the log's end however long nothing matches,
// and looks only at what could match. The mark that was taken may stand for
// later ones, too, which found it in place, and some of those may be for events
// that are not published yet. No later mark would tell of them, but latest does:
//
//	C4 l ≥ v.end: the next poll must look at everything from v.end on
//
// and the signal for them is on its way.
//
// A Cursor is read by one goroutine. Close it when done.
type Cursor struct {
	cache  *Cache
	filter *Filter
	epoch  uint64
	next   uint64 // the next sequence number to look at
	behind bool   // the next poll must look at everything from next on
	more   bool   // the last poll left something that is in the log
	floor  uint64 // a start that upstream had not reached; not delivered up to there
	passed uint64 // the start, then the end of the last gap that was found to be passable
	strict bool   // see WholeHistory

	pending atomic.Uint64 // earliest marked sequence number, 0 for none
	latest  atomic.Uint64 // latest marked sequence number; only the writer sets it
	signal  chan struct{}
	notify  atomic.Pointer[func()] // instead of signal
	place   int                    // in its cursorSet, guarded by interests.mu
}

// Delta is an event as one watch sees it through its filter. RV is the
// resourceVersion that is shown, from which its reader may go on anywhere; Object
// may still carry an older one, when it is the previous version of an object that
// left the selection.
type Delta struct {
	Type   EventType
	RV     uint64
	Object *object.Object
}

// Watch returns a cursor that delivers the changes after resourceVersion from,
// which may be one that upstream has not reached yet. It fails with
// [ErrNotReady] or with [*TooOldError].
func (c *Cache) Watch(filter *Filter, from uint64) (*Cursor, error) {
	return c.watch(filter, from, 0)
}

// WatchAfter is Watch from a state that the caller has. It also fails with
// [ErrEnded] if that is of an epoch which is over.
func (c *Cache) WatchAfter(filter *Filter, state Snapshot) (*Cursor, error) {
	return c.watch(filter, state.rv, state.epoch)
}

// watch opens a cursor in an epoch, or in the present one if that is 0.
func (c *Cache) watch(filter *Filter, from, epoch uint64) (*Cursor, error) {
	cursor := &Cursor{cache: c, filter: filter, signal: make(chan struct{}, 1)}
	// Register first: whatever is not in the view below will be marked.
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

// WholeHistory has the cursor fail with [*TooOldError] where a relist jumped. It is for a
// reader that keeps the events for others, who may go on from between them. It is called
// before the first Poll.
func (c *Cursor) WholeHistory() { c.strict = true }

// TooOldError says from where on the log can serve watches. It is an [ErrTooOld].
type TooOldError struct {
	From, Oldest uint64
	// Gap tells that From lies where a relist jumped, or in an epoch that is over: the
	// client has to list, and upstream is not to be asked.
	Gap bool
}

func (e *TooOldError) Error() string {
	return fmt.Sprintf("too old resource version: %d (%d)", e.From, e.Oldest)
}

// Is makes errors.Is(err, ErrTooOld) true.
func (e *TooOldError) Is(target error) bool { return target == ErrTooOld }

// Ready receives when there may be something to poll, including the end.
func (c *Cursor) Ready() <-chan struct{} { return c.signal }

// Notify has f called from now on where Ready would receive. F must not block: the writer
// calls it. What was signalled before is to be polled.
func (c *Cursor) Notify(f func()) { c.notify.Store(&f) }

// Wake makes Ready receive, whether or not there is anything to poll: whoever waits for
// other things as well need not wait for several channels. It does not block.
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

// Poll appends up to limit deltas to into, without waiting. The position covers
// all that was delivered so far: a bookmark at it would be true. It is below the cursor's start
// as long as the cache has not reached that, and before a gap until all of that was delivered.
// If Poll returns limit deltas, there may be more at once; otherwise Ready tells.
// A new cursor is polled first. It fails for good, with [ErrEnded], with [ErrLagged], or with
// [*TooOldError] if a relist has jumped over its start, or over changes that this watch
// cannot be told safely (see Cache.Replace).
func (c *Cursor) Poll(into []Delta, limit int) (deltas []Delta, position uint64, err error) {
	return c.poll(into, bounds{deltas: limit, bytes: math.MaxInt, looks: math.MaxInt})
}

// PollWithin is Poll for somebody who has room for so many bytes only: it stops before an
// event with which there would be more, even if it is the first. It also stops after a look
// at pollLooks events, however few of them concern the cursor. [Cursor.More] tells whether
// it has come to the end.
func (c *Cursor) PollWithin(into []Delta, limit, bytes int) (deltas []Delta, position uint64, err error) {
	return c.poll(into, bounds{limit, bytes, pollLooks})
}

// More tells whether the last poll has left something that it could have looked at.
func (c *Cursor) More() bool { return c.more }

// Err is what a poll would fail with because the log does not go back far enough, or has
// ended.
func (c *Cursor) Err() error {
	switch v := c.cache.view.Load(); {
	case v == nil || v.epoch != c.epoch:
		return ErrEnded
	case c.behind && c.next < v.first:
		return ErrLagged
	}
	return nil
}

// pollLooks is how many events PollWithin looks at.
const pollLooks = 1024

// EventOverhead is what PollWithin counts for an event beside its object, in bytes: what a
// watch writes around it takes less.
const EventOverhead = 256

// bounds are those of a poll.
type bounds struct{ deltas, bytes, looks int }

func (c *Cursor) poll(into []Delta, most bounds) (deltas []Delta, position uint64, err error) {
	v := c.cache.view.Load() // before pending, and that before latest: see Marks
	c.more = false
	if v == nil || v.epoch != c.epoch {
		return into, 0, ErrEnded
	}
	if c.strict && v.jumpedSince(c.passed) { // there may be nothing to show of it
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
		// What was deleted after the start may be logged before it.
		return into, 0, &TooOldError{From: c.floor, Oldest: v.rv}
	}
	before := len(into)
	if into, err = c.look(v, into, most); err != nil {
		return into[:before], 0, err
	}
	c.cache.delivered.Add(uint64(len(into) - before))
	// Below its start a cursor looks at all: it must not pass a gap unseen.
	c.more = c.next < v.end
	c.behind = c.more || coming || v.rv < c.floor
	if c.more {
		e := v.event(c.next)
		if e.jumped {
			g, _ := v.crossing(e.RV)
			return into, g.after, nil // what comes may have left the selection in the gap
		}
		return into, e.RV - 1, nil // not the last event's RV: the next one may share it
	}
	return into, v.rv, nil
}

// look appends what concerns the cursor from next on.
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
		d, ok := c.filter.delta(e)
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

// passes tells whether the cursor can go through the gap that it is about to enter with e. After
// each set, its client may go on elsewhere from there. It must not hold an object that may have
// been out of the selection at that time: a relist of another cache would not tell that it left.
// An object that is selected before and after the gap may have left and come back. So only
// the first set may be of such an object.
func (c *Cursor) passes(v *view, e *Event) bool {
	g, ok := v.crossing(e.RV)
	if !ok || c.passed == g.before {
		return ok
	}
	if c.filter.fickle {
		shown := false
		for seq := c.next; seq < v.end; seq++ {
			e := v.event(seq)
			if e.RV > g.before {
				break
			}
			switch d, ok := c.filter.delta(e); {
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

// Close forgets the cursor. It must be called exactly once.
func (c *Cursor) Close() { c.cache.interests.remove(c) }

// delta is what an event means to those who see only what the filter selects:
// entering the selection is ADDED, leaving it is DELETED. What left it in a gap is told before
// all sets there.
func (f *Filter) delta(e *Event) (Delta, bool) {
	is := e.Type != Deleted && f.Matches(e.Object)
	was := e.Prev != nil && f.Matches(e.Prev)
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
