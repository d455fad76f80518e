package watchcache

import (
	"fmt"
	"math"
	"sync/atomic"

	"github.com/watchproxy/watchproxy/watchcache/object"
)

// Cursor is a watch's position in the event log. The reader pulls events, so the writer never
// waits. A slow reader causes no cost until the log has dropped events that the reader still needs.
//
// Why not a channel per watch? A thousand channel buffers would contain copies of the same
// pointers. A full buffer blocks the writer or loses an event, and reveals a slow reader too late.
//
// # Marks
//
// Before the writer publishes event s, it marks every cursor that s may concern. It sets latest to
// s, and then pending to s unless pending already contains an earlier mark. After publication, it
// signals the marked cursors. A cursor reads in the opposite order:
//
//	v := published view
//	m := swap(pending, none)
//	l := latest
//
// Every event below v.end was marked before v was published. Suppose that the previous poll did not
// stop at its limit, and that C4 below did not apply to it. Then:
//
//	C1 m = none: no event in [next, v.end) concerns the cursor
//	C2 m < v.end: no event in [next, m) concerns the cursor
//	C3 m ≥ v.end: as C1
//
// So a narrow watch looks only at events that may match, and reads nothing while there are none.
//
// There is one exception. After mark m, the writer may have marked more events, some of them not
// published yet. It then changed only latest, because pending already contained m. So the poll that
// reads m must remember them:
//
//	C4 l ≥ v.end: the next poll must look at everything from v.end on
//
// The writer still signals these events after it publishes them.
//
// A Cursor is read by one goroutine. Close it when done.
type Cursor struct {
	cache  *Cache
	filter *object.Filter
	epoch  uint64
	next   uint64 // the sequence number of the next event to look at
	behind bool   // the next poll must look at everything from next on
	more   bool   // the last poll left events in the log
	floor  uint64 // the watch's start if it was ahead of the cache; events up to floor are skipped
	passed uint64 // the watch's start, or the end of the last gap that the cursor has passed
	strict bool   // set by WholeHistory
	// undecided is the namespace of the next event, without a decision (see object.Filter.Among).
	undecided string

	pending atomic.Uint64 // earliest marked sequence number, or 0
	latest  atomic.Uint64 // latest marked sequence number; only the writer sets it
	signal  chan struct{}
	notify  atomic.Pointer[func()] // called instead of sending to signal
	index   int                    // in its cursorSet; guarded by interests.mu
}

// Delta is an event as a watch sees it through its filter. RV is the resourceVersion for the
// client, which may resume from RV at any server. If an object left the selection, Object may be
// its previous version, with an older resourceVersion. Prev is the version before a MODIFIED event,
// and nil for other events.
type Delta struct {
	Type   EventType
	RV     uint64
	Object *object.Object
	Prev   *object.Object
	// Received is the moment (see [Moment]) at which the event arrived from upstream.
	Received int64
}

// Watch returns a cursor that delivers the changes after from, which may be newer than the cache.
// It fails with [ErrNotReady] or [*TooOldError].
func (c *Cache) Watch(filter *object.Filter, from uint64) (*Cursor, error) {
	return c.watch(filter, from, 0)
}

// WatchAfter is like Watch at a snapshot's resourceVersion. If the snapshot's epoch is over, it
// returns [ErrEnded].
func (c *Cache) WatchAfter(filter *object.Filter, state Snapshot) (*Cursor, error) {
	return c.watch(filter, state.rv, state.epoch)
}

// watch opens a cursor in the given epoch, or in the current epoch if epoch is 0.
func (c *Cache) watch(f *object.Filter, from, epoch uint64) (*Cursor, error) {
	cursor := &Cursor{
		cache:  c,
		filter: f,
		signal: make(chan struct{}, 1),
	}
	// Register before loading the view, so that every event missing from the view gets a mark.
	c.interests.add(cursor)
	v := c.view.Load()
	var err error
	switch {
	case v == nil:
		err = c.notReady()
	case epoch != 0 && epoch != v.epoch:
		err = ErrEnded
	case from < v.since:
		err = &TooOldError{
			From:   from,
			Oldest: v.since,
			Gap:    from <= v.abandoned,
		}
	case from > v.newest().rv && from <= v.abandoned, v.inGap(from):
		err = v.tooOld(from)
	}
	if err != nil {
		c.interests.remove(cursor)
		return nil, err
	}
	cursor.epoch, cursor.next, cursor.behind, cursor.passed = v.epoch, v.after(from), true, from
	if from > v.rv {
		cursor.floor = from
		c.interests.awaitFloor(cursor)
	}
	return cursor, nil
}

// WholeHistory makes the cursor fail with [*TooOldError] at a relist's gap. A reader with clients
// of its own needs it, because they may resume between any two events. Call it before the first
// Poll.
func (c *Cursor) WholeHistory() { c.strict = true }

// TooOldError means that the log does not reach back to From. A watch can start at Oldest.
type TooOldError struct {
	From, Oldest uint64
	// Gap is true if From lies in a relist's gap or in an earlier epoch. The client then has to
	// list. The watch must not be forwarded.
	Gap bool
}

func (v *view) tooOld(from uint64) error {
	return &TooOldError{
		From:   from,
		Oldest: v.rv,
		Gap:    true,
	}
}

func (e *TooOldError) Error() string {
	return fmt.Sprintf("too old resource version: %d (%d)", e.From, e.Oldest)
}

// Is makes errors.Is(err, ErrTooOld) true.
func (e *TooOldError) Is(target error) bool { return target == ErrTooOld }

// Ready receives a value when a poll may return deltas or the final error.
func (c *Cursor) Ready() <-chan struct{} { return c.signal }

// Notify makes the cursor call f from now on, instead of sending to Ready. f runs in the writer's
// goroutine, so it must not block. After Notify, call Poll once, because f was not called for
// earlier signals.
func (c *Cursor) Notify(f func()) { c.notify.Store(&f) }

// Wake signals the cursor's reader. The cache calls it for new events. Readers call it for other
// events, even if there is nothing to poll. Wake does not block.
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

// Undecided returns the namespace at whose event the last poll stopped, because there is no
// decision on it (see [object.Filter.Among]), or "". The next poll should wait for the decision.
func (c *Cursor) Undecided() string { return c.undecided }

// More reports whether the last poll stopped before the end of the log.
func (c *Cursor) More() bool { return c.more }

// Err returns nil while the cursor can continue. If the log has ended, or has dropped events that
// the cursor needs, Err returns the error of the next poll.
func (c *Cursor) Err() error {
	switch v := c.cache.view.Load(); {
	case v == nil || v.epoch != c.epoch:
		return ErrEnded
	case c.behind && c.next < v.first && v.since > c.floor:
		return ErrLagged
	}
	return nil
}

const pollLooks = 1024

// EventOverhead is the number of bytes that Poll adds to an object's size for its event.
const EventOverhead = 256

// Poll appends up to limit deltas to into, without waiting. The cursor has delivered all events up
// to position, so the caller may send a bookmark with this resourceVersion. Until the cache has
// reached the cursor's start, position stays below that start. position passes the start of a gap
// only after the delivery of all changes inside the gap.
//
// Poll stops before the event that would exceed a limit of bytes, even if that event is the first
// one. It also stops after it has looked at pollLooks events, and before a gap that needs more
// looks (see passes), unless bytes is MaxInt. If there is more (see More), call Poll again.
// Otherwise wait for Ready. Poll a new cursor at once.
//
// An error is final: [ErrEnded], [ErrLagged], or a [*TooOldError] if a relist skipped the cursor's
// start or changes that this watch cannot show safely (see [Writer.Replace]).
func (c *Cursor) Poll(into []Delta, limit, bytes int) (deltas []Delta, position uint64, err error) {
	v := c.cache.view.Load() // load view, then pending, then latest (see Marks)
	c.more, c.undecided = false, ""
	if v == nil || v.epoch != c.epoch {
		return into, 0, ErrEnded
	}
	if c.strict && v.jumpedSince(c.passed) { // even if none of the gap's events concerns the cursor
		return into, 0, v.tooOld(c.passed)
	}
	mark := c.pending.Swap(0)
	coming := c.latest.Load() >= v.end // C4
	if !c.behind {
		if mark == 0 || mark >= v.end {
			c.next, c.behind = v.end, coming // C1, C3
			return into, c.reached(v), nil
		}
		c.next = mark // C2
	}
	if c.next < v.first && v.since <= c.floor { // L4: all events after the start are there
		c.next = v.first
	}
	switch {
	case c.next < v.first:
		return into, 0, ErrLagged
	case v.inGap(c.floor):
		// The log shows the gap's deletions at the gap's start, although they may have happened
		// after the cursor's start.
		return into, 0, &TooOldError{From: c.floor, Oldest: v.rv}
	}
	before := len(into)
	if into, err = c.look(v, into, limit, bytes); err != nil {
		return into[:before], 0, err
	}
	c.cache.delivered.Add(uint64(len(into) - before))
	// Below its start, a cursor must look at every event. Otherwise it could miss a gap.
	c.more = c.next < v.end
	c.behind = c.more || coming || v.rv < c.floor
	if c.more {
		e := v.event(c.next)
		if e.jumped { // the next object may have left the selection in the gap
			return into, v.crossing(e).after, nil
		}
		return into, e.RV - 1, nil // the next event may have the same RV as the last event
	}
	return into, c.reached(v), nil
}

// reached is the position at the log's end. A proxy in front waits for the resourceVersion that its
// probe has shown, even if only [Writer.Carry] has reached it. For others, a gap may begin at v.rv.
func (c *Cursor) reached(v *view) uint64 {
	if c.strict {
		return max(v.rv, v.carried)
	}
	return v.rv
}

func (c *Cursor) look(v *view, into []Delta, limit, bytes int) ([]Delta, error) {
	last, longGaps := min(v.end, c.next+pollLooks), bytes == math.MaxInt
	for ; c.next < last && limit > 0; c.next++ {
		e := v.event(c.next)
		if e.RV <= c.floor {
			continue
		}
		if e.jumped && c.passed != v.crossing(e).before && c.filter.MayReenter() {
			if v.end-c.next > pollLooks && !longGaps {
				break
			}
			if !c.passes(v, v.crossing(e)) {
				return into, v.tooOld(e.RV - 1)
			}
		}
		d, ok := c.delta(e)
		if !ok {
			continue
		}
		selected, known := c.filter.Decide(e.Object)
		if !known {
			c.undecided = c.filter.Home(e.Object)
			break
		}
		if !selected {
			continue
		}
		if bytes -= len(d.Object.Item()) + EventOverhead; bytes < 0 {
			break
		}
		limit--
		into = append(into, d)
	}
	return into, nil
}

// passes reports whether the cursor may deliver the changes of a gap, of which the next event is
// the first. After each set (an added or changed object) of the gap, the client may resume at
// another cache. That cache does not report earlier removals. If objects can leave the selection
// and come back, an object that is selected before and after the gap may have done so in between.
// So it may only be the first set of the gap.
func (c *Cursor) passes(v *view, g gap) bool {
	sent := false
	for seq := c.next; seq < v.end && v.event(seq).RV <= g.before; seq++ {
		switch d, ok := c.delta(v.event(seq)); {
		case !ok || d.Type == Deleted:
		case d.Type == Modified && sent:
			return false
		default:
			sent = true
		}
	}
	c.passed = g.before
	return true
}

// Close removes the cursor from its cache. It must be called exactly once.
func (c *Cursor) Close() { c.cache.interests.remove(c) }

// delta returns an event as the filter's selection shows it. Objects that left the selection in a
// gap come before the gap's sets.
func (c *Cursor) delta(e *Event) (Delta, bool) {
	is := e.Type != Deleted && c.filter.Matches(e.Object)
	was := e.Prev != nil && c.filter.Matches(e.Prev)
	switch {
	case e.Type == left:
		return Delta{Deleted, e.RV - 1, e.Prev, nil, e.at}, was && !is
	case is && was:
		return Delta{Modified, e.RV, e.Object, e.Prev, e.at}, true
	case is:
		return Delta{Added, e.RV, e.Object, nil, e.at}, true
	case was && e.Type == Deleted:
		return Delta{Deleted, e.Object.ResourceVersion(), e.Object, nil, e.at}, true
	case was && !e.jumped:
		return Delta{Deleted, e.RV, e.Prev, nil, e.at}, true
	}
	return Delta{}, false
}
