package watch

import (
	"context"
	"fmt"
	"math"
	"runtime"
	"time"

	"github.com/watchproxy/watchproxy/proxy/exchange"
	"github.com/watchproxy/watchproxy/proxy/grants"
	"github.com/watchproxy/watchproxy/proxy/wire"
	"github.com/watchproxy/watchproxy/watchcache"
	"github.com/watchproxy/watchproxy/watchcache/object"
	"github.com/watchproxy/watchproxy/watchcache/tree"
)

// deltasMax is the maximum number of events in one poll of the log, and pumpDeltas the maximum in a
// pump. A watch with more new events leaves the pump until it has caught up.
const deltasMax, pumpDeltas = 128, 16

// deliver appends the new events that fit into a piece of 64 KiB, or writes a single event. If
// behind is true, there are more events, and position is not valid. Only a pump passes scratch
// space s. An event larger than a piece is not written in the pump, but in the goroutine in which
// the watch catches up.
//
// deliver drops polled events before it waits for a client, because they would keep objects in
// memory that the log has dropped.
func (w *Watch) deliver(out *exchange.ChunkWriter, s *Scratch, late *lateRuns) (position uint64, behind bool, err error) {
	pooled, most := s, pumpDeltas
	if pooled == nil {
		pooled = scratches.Get().(*Scratch)
		most = deltasMax
	}
	polled, position, err := w.poll(pooled.deltas[:0], most, exchange.PieceSize)
	if s != nil && len(polled) == 1 && err == nil && out.Buf == nil && w.member == nil {
		err = w.writeOne(out, &polled[0], s)
	} else {
		for i := range polled {
			if err != nil { // after an error the client watches again, and upstream answers
				break
			}
			err = w.append(out, &polled[i])
		}
	}
	w.Meter.ReleaseSlot()
	if err == nil {
		w.noteLag(late, polled)
	}
	clear(polled)
	if s == nil {
		scratches.Put(pooled)
		if len(polled) == 0 && err == nil && w.Cursor.More() && !w.waits {
			return w.deliverLarge(out, late)
		}
	}
	return position, w.Cursor.More(), err
}

// poll is PollWithin. It fails if the grants were over after the poll. If there is no decision on the
// namespace of the next event, it asks for one, and the watch waits until it is woken.
func (w *Watch) poll(into []watchcache.Delta, limit, bytes int) (deltas []watchcache.Delta, position uint64, err error) {
	deltas, position, err = w.Cursor.PollWithin(into, limit, bytes)
	w.waits = false
	switch {
	case w.Grants == nil || err != nil:
	case w.Grants.Over(): // see package grants
		err = grants.ErrChanged
	case len(deltas) == 0 && w.Cursor.Undecided() != "":
		w.waits = true
		w.Grants.Ask(w.Cursor.Undecided())
	}
	return deltas, position, err
}

// noteLag collects the arrival times of events that are about to be written.
func (w *Watch) noteLag(late *lateRuns, polled []watchcache.Delta) {
	switch {
	case w.Lag == nil || len(polled) == 0:
	case w.slow:
		late.add(&w.Lag.Slow, polled, w.opened)
	default:
		late.add(&w.Lag.Prompt, polled, w.opened)
	}
}

// deliverLarge is deliver for one event of any size.
func (w *Watch) deliverLarge(out *exchange.ChunkWriter, late *lateRuns) (position uint64, behind bool, err error) {
	defer w.Meter.ReleaseSlot()
	polled, position, err := w.poll(make([]watchcache.Delta, 0, 1), 1, math.MaxInt)
	if err == nil && len(polled) == 1 {
		if d := &polled[0]; w.member != nil || w.Choice.Table || w.shares(d) {
			err = w.append(out, d)
		} else {
			err = w.add(out, d.Type, shownAt(d))
		}
		if err == nil {
			w.noteLag(late, polled)
		}
	}
	return position, w.Cursor.More(), err
}

// writeState writes the initial state of the watch. If the client asked for bookmarks, a bookmark
// follows.
func (w *Watch) writeState(ctx context.Context, out *exchange.ChunkWriter) error {
	defer w.Meter.ReleaseSlot()
	plain := w.plain(out)
	for span := range w.State {
		if err := w.writeSpan(plain, span); err != nil {
			if w.Grants != nil {
				w.appendEnd(plain, err)
			}
			_ = w.flushAll(out) // writes earlier events
			return err
		}
		if err := w.stays(ctx); err != nil {
			w.appendEnd(plain, err)
			_ = w.flushAll(out)
			return err
		}
	}
	if w.Meter.Failed() != nil { // the selection failed
		return w.Meter.Failed()
	}
	if w.Bookmarks {
		if err := w.putBookmark(plain, w.Start, true); err != nil {
			return err
		}
	}
	return w.flushAll(out)
}

// writeSpan writes a part of the initial state.
func (w *Watch) writeSpan(out *exchange.ChunkWriter, span tree.Span) (err error) {
	write, most := w.writePart, int64(exchange.PieceSize)
	if w.Derived != nil {
		write, most = w.writeSegment, 1<<20 // which is compressed in one turn
	}
	for part := range span.Parts(most) {
		if err = write(out, part); err != nil {
			break
		}
	}
	return err
}

// writeSegment writes a compressed segment that watches share.
func (w *Watch) writeSegment(_ *exchange.ChunkWriter, part tree.Span) error {
	made := false
	err := w.Derived.AddedEvents(w.Meter, part, w.Choice, w.Form, func(s *wire.Segment) error {
		made = true
		return w.member.add(s)
	})
	if err != nil && !made && w.Meter.Failed() == nil {
		return w.unwritable(err)
	}
	return err
}

// writePart writes about a piece, for which it waits for a turn. It waits for rows without a slot, and
// only for those of the objects: the rows of a quiet resource may stay at an older resourceVersion
// than the state.
func (w *Watch) writePart(out *exchange.ChunkWriter, part tree.Span) error {
	if w.Choice.Table && !w.late {
		w.Meter.ReleaseSlot()
		w.late = !w.Rows.AwaitLate(part.Newest())
	}
	if cost := w.stateCost(); cost > 0 {
		if err := w.Meter.Spend(cost * part.Bytes()); err != nil {
			return err
		}
		if w.late {
			w.Meter.ReleaseSlot()
		}
	}
	if w.Grants != nil {
		if w.Grants.Expired() {
			w.Meter.ReleaseSlot() // before the wait for reviews
		}
		if err := w.Grants.Renew(w.Meter.Context()); err != nil {
			return err
		}
	}
	for _, o := range part.Objects() {
		if err := w.add(out, watchcache.Added, o); err != nil {
			return err
		}
	}
	return nil
}

// stateCost is the cost of the initial state, for each of its bytes.
func (w *Watch) stateCost() (cost int64) {
	if w.member != nil {
		cost = 1
	}
	if !w.Form.Verbatim() {
		cost += w.Cost
	}
	return cost
}

// stays fails if the rest of the state need not be written. If the log has dropped the watch's
// position, the watch would fail after the state anyway. So a state keeps replaced objects in
// memory no longer than the log does.
func (w *Watch) stays(ctx context.Context) error {
	now := time.Now()
	switch err := w.Cursor.Err(); {
	case err != nil:
		return err
	case !now.Before(w.deadline):
		return context.DeadlineExceeded
	case !w.recheck.goesOn(ctx, now):
		return exchange.ErrRevoked
	}
	return ctx.Err()
}

// add appends an event. If there is no room for the event, add flushes first. If an event is larger
// than a piece and its form allows it, add writes the event from the cache's own bytes.
func (w *Watch) add(out *exchange.ChunkWriter, kind watchcache.EventType, o wire.Object) error {
	size := len(o.Bytes()) + watchcache.EventOverhead
	if err := out.MakeRoom(size); err != nil {
		return err
	}
	if size <= exchange.PieceSize {
		return w.put(out, kind, o)
	}
	buf := out.Pending()
	head, body, tail, ok := w.Form.SplitEvent(*buf, kind.String(), o)
	if !ok {
		return w.putLarge(out, kind, o)
	}
	*buf = head
	return out.FlushWith(body, tail)
}

// put appends an event.
func (w *Watch) put(out *exchange.ChunkWriter, kind watchcache.EventType, o wire.Object) (err error) {
	buf := out.Pending()
	if *buf, err = w.Form.AppendEvent(*buf, kind.String(), o); err != nil {
		return w.unwritable(err)
	}
	return nil
}

// putLarge is put for a large event of this watch alone, and writes it at once. It waits for room
// without a slot, and for the client with neither. Without room the watch ends. The next watch may find
// room: upstream does not answer it, because one user's watches would then decide for all users.
func (w *Watch) putLarge(out *exchange.ChunkWriter, kind watchcache.EventType, o wire.Object) error {
	size := int64(len(o.Bytes()))
	w.Meter.ReleaseSlot()
	release, err := w.Room.Hold(size)
	if err != nil {
		w.ends(endUnwritable)
		return fmt.Errorf("no room for an event of %d bytes: %w", size, err)
	}
	defer release()
	if err := w.Meter.Spend(w.Cost * size); err != nil {
		return err
	}
	err = w.put(out, kind, o)
	w.Meter.ReleaseSlot()
	if err != nil {
		return err
	}
	return out.Flush()
}

// unwritable ends the watch. The client watches again, and upstream answers.
func (w *Watch) unwritable(err error) error {
	w.ends(endUnwritable)
	w.Unwritable()
	return err
}

// append appends an event. If an object no longer matches the selector, the event contains the
// object's previous content with the resourceVersion of the change.
func (w *Watch) append(out *exchange.ChunkWriter, d *watchcache.Delta) error {
	if w.Choice.Table {
		w.Rows.AwaitLate(d.RV)
		size := len(d.Object.Bytes())
		if size > exchange.PieceSize {
			return w.putLarge(w.plain(out), d.Type, shownAt(d))
		}
		if err := w.Meter.Spend(w.Cost * int64(size)); err != nil {
			return err
		}
	}
	if w.member == nil && !w.shares(d) {
		return w.put(out, d.Type, shownAt(d))
	}
	e, err := w.event(d)
	if err != nil {
		return w.unwritable(err)
	}
	if len(out.Buf)+e.size() > exchange.PieceSize {
		w.Meter.ReleaseSlot() // before the wait for room, and for the client
	}
	release, err := e.held(w.Room)
	if err != nil {
		w.ends(endUnwritable)
		return fmt.Errorf("no room for an event of %d bytes: %w", e.size(), err)
	}
	defer release()
	switch {
	case e.hidden:
		d.Received = 0 // so that it does not count as delivered
	case w.member != nil:
		err = w.member.add(e.segment)
	default:
		err = out.Add(e.plain)
	}
	runtime.KeepAlive(e) // so that other watches find it meanwhile
	return err
}

// shown is an object at the resourceVersion of an event.
type shown struct {
	*object.Object
	written uint64 // the resourceVersion of its content
}

// Written implements wire.Object.
func (s shown) Written() uint64 { return s.written }

// shownAt returns the object of an event as the client receives it.
func shownAt(d *watchcache.Delta) wire.Object {
	if d.Object.ResourceVersion() != d.RV {
		return shown{d.Object.At(d.RV), d.Object.ResourceVersion()}
	}
	return d.Object
}
