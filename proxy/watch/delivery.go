package watch

import (
	"cmp"
	"context"
	"math"
	"time"

	"github.com/watchproxy/watchproxy/proxy/exchange"
	"github.com/watchproxy/watchproxy/watchcache"
)

// deltasMax is the maximum number of events in one poll of the log, and pumpDeltas the maximum in a
// pump. A watch with more new events leaves the pump until it has caught up.
const deltasMax, pumpDeltas = 128, 16

// Step delivers new events and does all other work that is due. It reports whether the watch
// continues, and whether there are more events to deliver. A pump passes scratch space. A caller
// whose writes may block passes nil, because a blocked write would keep the space in use.
func (w *Watch) Step(ctx context.Context, out *exchange.ChunkWriter, s *Scratch) (on, behind bool) {
	if s == nil {
		return w.waitingStep(ctx, out)
	}
	on, behind = w.step(ctx, out, s, &s.late)
	s.late.sent(w.lags.of, w.lags.takeSent(out))
	return on, behind
}

// waitingStep is a step whose events count as slow if its writes wait for the client.
func (w *Watch) waitingStep(ctx context.Context, out *exchange.ChunkWriter) (on, behind bool) {
	var late lateRuns
	waits := &waits{to: out.To}
	out.To = waits
	on, behind = w.step(ctx, out, nil, &late)
	out.To = waits.to
	w.lags.countWaited(&late, waits.took)
	w.lags.of.Bytes.Add(w.lags.takeSent(out))
	w.lags.slow = w.lags.slow && behind
	return on, behind
}

// ClientWaited makes deliveries count as slow until the watch has caught up, because the client had
// not read earlier bytes. It must be called in the goroutine that works on the watch.
func (w *Watch) ClientWaited() { w.lags.slow = true }

func (w *Watch) step(
	ctx context.Context, out *exchange.ChunkWriter, s *Scratch, late *lateRuns,
) (on, behind bool) {
	on, behind = w.work(ctx, out, s, late)
	if !on {
		w.encoder.member.end()
	}
	return on, behind && !w.place.waits
}

func (w *Watch) work(
	ctx context.Context, out *exchange.ChunkWriter, s *Scratch, late *lateRuns,
) (on, behind bool) {
	due := w.alarm.due.Swap(false) // must come before all checks
	position, behind, err := w.deliver(out, s, late)
	if s != nil {
		w.lags.slow = w.lags.slow && behind
	}
	if err != nil {
		w.Broken(err)
		w.encoder.appendEnd(out, w.cache, err)
		_ = w.encoder.flush(out) // writes earlier events
		return false, false
	}
	// While the watch is behind, upstream may never have had a state at this position.
	if due && !behind && w.appendBookmark(out, position) != nil {
		w.reason = cmp.Or(w.reason, endUnwritable)
		_ = w.encoder.flush(out)
		return false, false
	}
	if err = w.encoder.flush(out); err != nil {
		w.Broken(err)
		return false, false
	}
	if due && !w.goesOn(ctx, out, position, behind) {
		return false, false
	}
	return true, behind
}

// goesOn reports whether the watch continues. It sets the alarm, or ends the watch.
func (w *Watch) goesOn(
	ctx context.Context, out *exchange.ChunkWriter, position uint64, behind bool,
) bool {
	now := time.Now()
	if !w.recheck.goesOn(ctx, now) { // the client then opens another watch and is refused
		w.reason = cmp.Or(w.reason, endRevoked)
		return false
	}
	gone := ctx.Err() != nil
	if w.schedule.over(now, w.plan.DrainShare) || gone {
		w.end(out, position, behind, gone)
		return false
	}
	next := w.recheck.next(w.schedule.next())
	switch {
	case w.place.waits: // so does the bookmark
		w.alarm.set(w.recheck.next(w.schedule.deadline))
	case behind && !now.Before(next): // the bookmark waits until the client has caught up
		w.alarm.due.Store(true)
	default:
		w.alarm.set(next)
	}
	return true
}

// end writes what the client has to know at the end of its time, of the drain, or when it has gone.
func (w *Watch) end(out *exchange.ChunkWriter, position uint64, behind, gone bool) {
	switch {
	case gone:
		w.reason = cmp.Or(w.reason, endClient)
	case w.schedule.drains:
		w.reason = cmp.Or(w.reason, endDrain)
	default:
		w.reason = cmp.Or(w.reason, endTimeout)
	}
	switch {
	case w.plan.Anew && w.plan.Bookmarks && !gone: // otherwise the client would try to resume
		w.encoder.appendEnd(out, w.cache, errAnew)
	case behind && !gone:
		w.encoder.appendEnd(out, w.cache, watchcache.ErrLagged)
	case w.schedule.drains && !behind:
		// The client can then continue at another replica from the latest resourceVersion. An older
		// one may have expired there. The bookmark is sent even if its resourceVersion is not new:
		// if a watch ends within a second without an event, client-go's informers treat the watch
		// as broken and list again.
		if b := w.cache.Bookmark(); b != nil && w.schedule.periodic {
			_ = w.encoder.bookmark(out, b.Append(nil, max(position, w.plan.Start), false))
		}
	}
	_ = w.encoder.flush(out) // the client may be gone
}

// deliver appends the new events that fit into a piece of 64 KiB, or writes a single event. If
// behind is true, there are more events, and position is not valid. Only a pump passes scratch
// space s. An event larger than a piece is not written in the pump, but in the goroutine in which
// the watch catches up.
//
// deliver drops polled events before it waits for a client, because they would keep objects in
// memory that the log has dropped.
func (w *Watch) deliver(
	out *exchange.ChunkWriter, s *Scratch, late *lateRuns,
) (position uint64, behind bool, err error) {
	pooled, most := s, pumpDeltas
	if pooled == nil {
		pooled = scratches.Get().(*Scratch)
		most = deltasMax
	}
	polled, position, err := w.place.poll(pooled.deltas[:0], most, exchange.PieceSize)
	if s != nil && len(polled) == 1 && err == nil && out.Buf == nil && w.encoder.member == nil {
		err = w.encoder.writeOne(out, &polled[0], s)
	} else {
		for i := range polled {
			if err != nil { // after an error the client watches again, and upstream answers
				break
			}
			err = w.encoder.append(out, &polled[i])
		}
	}
	w.encoder.meter.ReleaseSlot()
	if err == nil {
		w.lags.note(late, polled)
	}
	clear(polled)
	if s == nil {
		scratches.Put(pooled)
		if len(polled) == 0 && err == nil && w.place.cursor.More() && !w.place.waits {
			return w.deliverLarge(out, late)
		}
	}
	return position, w.place.cursor.More(), err
}

func (w *Watch) deliverLarge(
	out *exchange.ChunkWriter, late *lateRuns,
) (position uint64, behind bool, err error) {
	defer w.encoder.meter.ReleaseSlot()
	polled, position, err := w.place.poll(make([]watchcache.Delta, 0, 1), 1, math.MaxInt)
	if err == nil && len(polled) == 1 {
		d, e := &polled[0], &w.encoder
		if e.member != nil || w.plan.Choice.Table || e.shares(d) {
			err = e.append(out, d)
		} else {
			err = e.add(out, d.Type, shownAt(d))
		}
		if err == nil {
			w.lags.note(late, polled)
		}
	}
	return position, w.place.cursor.More(), err
}

// appendBookmark adds a bookmark if one is due and its resourceVersion is new.
func (w *Watch) appendBookmark(out *exchange.ChunkWriter, position uint64) error {
	isNew := position > w.plan.Start && w.cache.Bookmark() != nil
	if !w.schedule.takesBookmark(time.Now(), isNew) {
		return nil
	}
	return w.encoder.bookmark(out, w.cache.Bookmark().Append(nil, position, false))
}
