package watch

import (
	"context"
	"math"
	"time"

	"github.com/watchproxy/watchproxy/proxy/exchange"
	"github.com/watchproxy/watchproxy/watchcache"
	"github.com/watchproxy/watchproxy/watchcache/object"
)

// deltasMax is how many events are taken from the log at once. If a watch is more than pumpDeltas
// behind, it leaves the pump until it has caught up.
const deltasMax, pumpDeltas = 128, 16

// deliver appends new events as far as they fit into a piece, or writes a single event. If behind
// is true, there are more events; otherwise the position is valid. A pump has scratch space. It
// leaves an event larger than a piece to the goroutine that catches up.
//
// deliver holds no polled events while it waits for a client. They would keep objects alive that
// the log has dropped.
func (w *Watch) deliver(out *exchange.ChunkWriter, s *Scratch) (position uint64, behind bool, err error) {
	pooled, most := s, pumpDeltas
	if pooled == nil {
		pooled = scratches.Get().(*Scratch)
		most = deltasMax
	}
	polled, position, err := w.Cursor.PollWithin(pooled.deltas[:0], most, exchange.PieceSize)
	if s != nil && len(polled) == 1 && err == nil && out.Buf == nil {
		err = w.writeOne(out, &polled[0], s)
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

// deliverLarge is deliver for one event of any size.
func (w *Watch) deliverLarge(out *exchange.ChunkWriter) (position uint64, behind bool, err error) {
	var one [1]watchcache.Delta
	polled, position, err := w.Cursor.PollWithin(one[:0], 1, math.MaxInt)
	if err == nil && len(polled) == 1 {
		err = w.add(out, one[0].Type, one[0].Object.At(one[0].RV))
	}
	return position, w.Cursor.More(), err
}

// writeState writes the state that the watch begins with, and the bookmark that ends it if the
// client asked for bookmarks.
func (w *Watch) writeState(ctx context.Context, out *exchange.ChunkWriter) error {
	for span := range w.State() {
		for _, o := range span.Objects() {
			if err := w.add(out, watchcache.Added, o); err != nil {
				_ = out.Flush() // earlier events
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

// stays fails if there is no point in writing the rest of the state. The state keeps replaced
// objects alive, but no longer than the log does. If a watch has fallen out of the log, it could
// not go on after the state.
func (w *Watch) stays(ctx context.Context) error {
	if err := w.Cursor.Err(); err != nil {
		return err
	}
	if !time.Now().Before(w.deadline) {
		return context.DeadlineExceeded
	}
	return ctx.Err()
}

// add appends an event, after a flush if there is no room for it. If an event is larger than a
// piece and its form allows it, add writes the event from the cache's own bytes.
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
		w.Unwritable() // the client comes back and is sent to upstream
	}
	return err
}

// append appends an event. If an object left the selection, the event has the object's previous
// content with the resourceVersion of the change.
func (w *Watch) append(out *exchange.ChunkWriter, d *watchcache.Delta) error {
	return w.put(out, d.Type, d.Object.At(d.RV))
}
