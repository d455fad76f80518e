package watch

import (
	"context"
	"math"
	"time"

	"github.com/watchproxy/watchproxy/proxy/exchange"
	"github.com/watchproxy/watchproxy/watchcache"
	"github.com/watchproxy/watchproxy/watchcache/object"
)

// deltasMax is how many events are taken from the log at once. A watch that is further behind than
// pumpDeltas leaves the pump until it has caught up.
const deltasMax, pumpDeltas = 128, 16

// deliver appends what has happened since the last time, as far as it fits into a piece, or
// writes it if it is one event. There may be more at once. The position is only good if there
// is not. A pump, which has scratch space, leaves an event that is larger than a piece to
// catchUp.
//
// Nothing of what is polled is held while a client is waited for: it would keep objects alive
// that the log has let go of.
func (w *Watch) deliver(out *exchange.ChunkWriter, s *Scratch) (position uint64, behind bool, err error) {
	pooled, most := s, pumpDeltas
	if pooled == nil {
		pooled = scratches.Get().(*Scratch)
		most = deltasMax
	}
	polled, position, err := w.Cursor.PollWithin(pooled.deltas[:0], most, exchange.PieceSize)
	if s != nil && len(polled) == 1 && err == nil && out.Buf == nil {
		err = w.writeOne(out, &polled[0], &s.frames)
	} else {
		for i := range polled {
			if err != nil { // upstream has to write what cannot be written here
				break
			}
			err = w.append(out, &polled[i])
		}
	}
	clear(polled)
	if s == nil {
		scratches.Put(pooled)
		if len(polled) == 0 && err == nil && w.Cursor.More() {
			return w.deliverLarge(out)
		}
	}
	return position, w.Cursor.More(), err
}

// deliverLarge is deliver for one event, however large.
func (w *Watch) deliverLarge(out *exchange.ChunkWriter) (position uint64, behind bool, err error) {
	var one [1]watchcache.Delta
	polled, position, err := w.Cursor.PollWithin(one[:0], 1, math.MaxInt)
	if err == nil && len(polled) == 1 {
		err = w.add(out, one[0].Type, one[0].Object.At(one[0].RV))
	}
	return position, w.Cursor.More(), err
}

// writeState writes the state that the watch begins with, and the bookmark that
// ends it if the client asked for bookmarks.
func (w *Watch) writeState(ctx context.Context, out *exchange.ChunkWriter) error {
	for span := range w.State() {
		for _, o := range span.Objects() {
			if err := w.add(out, watchcache.Added, o); err != nil {
				_ = out.Flush() // what came before
				return err
			}
		}
		if err := w.stays(ctx); err != nil {
			w.appendEnd(out, err)
			_ = out.Flush()
			return err
		}
	}
	if w.Meter.Failed() != nil { // nothing was selected
		return w.Meter.Failed()
	}
	if w.Bookmarks {
		if err := w.putBookmark(out, w.Start, true); err != nil {
			return err
		}
	}
	return out.Flush()
}

// stays tells whether there is still a point in writing the state. It keeps alive what was
// replaced since, but no more than the log does: a watch that the log has left behind by then
// could not go on anyway.
func (w *Watch) stays(ctx context.Context) error {
	if err := w.Cursor.Err(); err != nil {
		return err
	}
	if !time.Now().Before(w.deadline) {
		return context.DeadlineExceeded
	}
	return ctx.Err()
}

// add appends an event, behind a flush if there is no room for it. An event that is larger
// than a piece is written from the bytes that the cache keeps, if it is made of them.
func (w *Watch) add(out *exchange.ChunkWriter, kind watchcache.EventType, o *object.Object) error {
	size := len(o.Item()) + watchcache.EventOverhead
	if err := out.MakeRoom(size); err != nil {
		return err
	}
	if size <= exchange.PieceSize {
		return w.put(out, kind, o)
	}
	buf := out.Pending()
	head, body, tail, ok := w.Form.SplitEvent(*buf, kind.String(), o.Bytes())
	if !ok {
		return w.put(out, kind, o)
	}
	*buf = head
	return out.FlushWith(body, tail)
}

// put appends an event.
func (w *Watch) put(out *exchange.ChunkWriter, kind watchcache.EventType, o *object.Object) (err error) {
	buf := out.Pending()
	if *buf, err = w.Form.AppendEvent(*buf, kind.String(), o.Bytes()); err != nil {
		w.Unwritable() // the client comes back, and finds upstream
	}
	return err
}

// append appends an event. An object that left the selection is shown with its
// previous content at the resourceVersion of the change.
func (w *Watch) append(out *exchange.ChunkWriter, d *watchcache.Delta) error {
	return w.put(out, d.Type, d.Object.At(d.RV))
}
