package watch

import (
	"context"
	"math"
	"time"

	"github.com/watchproxy/watchproxy/proxy/exchange"
	"github.com/watchproxy/watchproxy/proxy/wire"
	"github.com/watchproxy/watchproxy/watchcache"
	"github.com/watchproxy/watchproxy/watchcache/object"
)

// deltasMax is the maximum number of events that are taken from the log at a time, pumpDeltas the
// maximum in a pump. A watch that is further behind leaves the pump until it has caught up.
const deltasMax, pumpDeltas = 128, 16

// deliver appends the new events that fit into a piece of 64 KiB, or writes a single event. If
// behind is true, there are more events, and position is not valid. Only a pump passes scratch
// space s. It leaves an event larger than a piece to the goroutine in which the watch catches up.
//
// deliver holds no polled events while it waits for a client, because they would keep objects alive
// that the log has dropped.
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
			if err != nil { // the client comes back and watches upstream
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
		err = w.add(out, one[0].Type, shownAt(&one[0]))
	}
	return position, w.Cursor.More(), err
}

// writeState writes the state that the watch begins with, and then a bookmark if the client asked
// for bookmarks.
func (w *Watch) writeState(ctx context.Context, out *exchange.ChunkWriter) error {
	for span := range w.State() {
		for _, o := range span.Objects() {
			if err := w.add(out, watchcache.Added, o); err != nil {
				_ = out.Flush() // writes earlier events
				return err
			}
		}
		if err := w.stays(ctx); err != nil {
			w.appendEnd(out, err)
			_ = out.Flush()
			return err
		}
	}
	if w.Meter.Failed() != nil { // the selection was given up
		return w.Meter.Failed()
	}
	if w.Bookmarks {
		if err := w.putBookmark(out, w.Start, true); err != nil {
			return err
		}
	}
	return out.Flush()
}

// stays fails if there is no point in writing the rest of the state. If the log no longer has the
// watch's position, the watch could not go on after the state. So the state keeps replaced objects
// alive no longer than the log does.
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
		return w.put(out, kind, o)
	}
	*buf = head
	return out.FlushWith(body, tail)
}

// put appends an event.
func (w *Watch) put(out *exchange.ChunkWriter, kind watchcache.EventType, o wire.Object) (err error) {
	buf := out.Pending()
	if *buf, err = w.Form.AppendEvent(*buf, kind.String(), o); err != nil {
		w.Unwritable() // the client comes back and watches upstream
	}
	return err
}

// append appends an event. If an object no longer matches the selector, the event has the object's
// previous content with the resourceVersion of the change.
func (w *Watch) append(out *exchange.ChunkWriter, d *watchcache.Delta) error {
	return w.put(out, d.Type, shownAt(d))
}

// shown is an object at the resourceVersion of an event.
type shown struct {
	*object.Object
	written uint64
}

// Written implements wire.Object.
func (s shown) Written() uint64 { return s.written }

// shownAt returns the object of an event as the client sees it.
func shownAt(d *watchcache.Delta) wire.Object {
	if own := d.Object.ResourceVersion(); own != d.RV {
		return shown{d.Object.At(d.RV), own}
	}
	return d.Object
}
