package watch

import (
	"context"
	"iter"
	"time"

	"github.com/watchproxy/watchproxy/proxy/derived"
	"github.com/watchproxy/watchproxy/proxy/exchange"
	"github.com/watchproxy/watchproxy/proxy/fair"
	"github.com/watchproxy/watchproxy/proxy/grants"
	"github.com/watchproxy/watchproxy/proxy/wire"
	"github.com/watchproxy/watchproxy/watchcache"
	"github.com/watchproxy/watchproxy/watchcache/tree"
)

// Initial is the state with which a watch begins.
type Initial struct {
	Selected *derived.Selected // selects the objects of State
	State    tree.Tree
	// Derived has the parts of a compressed state that watches share; nil if this one shares none.
	Derived *derived.Store
}

// Spans selects the objects of the state, and walks them. Once they are selected, the state is not
// refused.
func (i *Initial) Spans(m *fair.Meter) iter.Seq[tree.Span] {
	spans := i.Selected.Ahead(i.State)
	m.End()
	return spans
}

// writeState writes the initial state, and a bookmark if the client asked for bookmarks.
func (w *Watch) writeState(ctx context.Context, out *exchange.ChunkWriter) error {
	meter := w.encoder.meter
	defer meter.ReleaseSlot()
	state := stateWriter{
		to:      &w.encoder,
		grants:  w.place.grants,
		derived: w.initial.Derived,
	}
	for span := range w.initial.Spans(meter) {
		if err := state.write(out, span); err != nil {
			if w.place.grants != nil {
				w.encoder.appendEnd(out, w.cache, err)
			}
			_ = w.encoder.flush(out) // writes earlier events
			return err
		}
		if err := w.stays(ctx); err != nil {
			w.encoder.appendEnd(out, w.cache, err)
			_ = w.encoder.flush(out)
			return err
		}
	}
	if meter.Failed() != nil { // the selection failed
		return meter.Failed()
	}
	if w.plan.Bookmarks {
		last := w.cache.Bookmark().Append(nil, w.plan.Start, true)
		if err := w.encoder.bookmark(out, last); err != nil {
			return err
		}
	}
	return w.encoder.flush(out)
}

// stays fails if the rest of the state need not be written. If the log has dropped the watch's
// position, the watch would fail after the state anyway. So a state keeps replaced objects in
// memory no longer than the log does.
func (w *Watch) stays(ctx context.Context) error {
	now := time.Now()
	switch err := w.place.cursor.Err(); {
	case err != nil:
		return err
	case !now.Before(w.schedule.deadline):
		return context.DeadlineExceeded
	case !w.recheck.goesOn(ctx, now):
		return exchange.ErrRevoked
	}
	return ctx.Err()
}

type stateWriter struct {
	to      *encoder
	grants  *grants.Watch
	derived *derived.Store
	late    bool // rows of the state are late
}

func (s *stateWriter) write(out *exchange.ChunkWriter, span tree.Span) (err error) {
	write, most := s.writePart, int64(exchange.PieceSize)
	if s.derived != nil {
		write, most = s.writeSegment, 1<<20 // which is compressed in one turn
	}
	for part := range span.Parts(most) {
		if err = write(s.to.plain(out), part); err != nil {
			break
		}
	}
	return err
}

func (s *stateWriter) writeSegment(_ *exchange.ChunkWriter, part tree.Span) error {
	made := false
	choice, form := s.to.plan.Choice, s.to.plan.Form
	err := s.derived.AddedEvents(s.to.meter, part, choice, form, func(segment *wire.Segment) error {
		made = true
		return s.to.member.add(segment)
	})
	if err != nil && !made && s.to.meter.Failed() == nil {
		return &unwritableError{err}
	}
	return err
}

// writePart writes about a piece, for which it waits for a turn. It waits for rows without a slot,
// and only for those of the objects: the rows of a quiet resource may stay at an older
// resourceVersion than the state.
func (s *stateWriter) writePart(out *exchange.ChunkWriter, part tree.Span) error {
	meter := s.to.meter
	if s.to.plan.Choice.Table && !s.late {
		meter.ReleaseSlot()
		s.late = !s.to.rows.AwaitLate(part.Newest())
	}
	if cost := s.cost(); cost > 0 {
		if err := meter.Spend(cost * part.Bytes()); err != nil {
			return err
		}
		if s.late {
			meter.ReleaseSlot()
		}
	}
	if s.grants != nil {
		if s.grants.Expired() {
			meter.ReleaseSlot() // before the wait for reviews
		}
		if err := s.grants.Renew(meter.Context()); err != nil {
			return err
		}
	}
	for _, o := range part.Objects() {
		if err := s.to.add(out, watchcache.Added, o); err != nil {
			return err
		}
	}
	return nil
}

// cost is the cost of the state, for each of its bytes.
func (s *stateWriter) cost() (cost int64) {
	if s.to.member != nil {
		cost = 1
	}
	if !s.to.plan.Form.Verbatim() {
		cost += s.to.plan.Cost
	}
	return cost
}
