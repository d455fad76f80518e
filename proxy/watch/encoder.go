package watch

import (
	"errors"
	"fmt"
	"runtime"

	"github.com/watchproxy/watchproxy/proxy/exchange"
	"github.com/watchproxy/watchproxy/proxy/fair"
	"github.com/watchproxy/watchproxy/proxy/grants"
	"github.com/watchproxy/watchproxy/proxy/wire"
	"github.com/watchproxy/watchproxy/watchcache"
	"github.com/watchproxy/watchproxy/watchcache/object"
)

// encoder appends events to a chunk writer, in the form of a watch, and compressed if the watch is.
// It writes large events without a copy, or in a copy that watches share.
type encoder struct {
	plan   *Plan
	meter  *fair.Meter // nil if events take no turns
	rows   Rows        // of a Table
	room   Room        // for the copies of large events
	shared *Events     // nil if no event is shared
	member *member     // nil if the watch is not compressed
}

func (e *encoder) plain(out *exchange.ChunkWriter) *exchange.ChunkWriter {
	if e.member == nil {
		return out
	}
	return &e.member.plain
}

func (e *encoder) flush(out *exchange.ChunkWriter) error {
	if e.member != nil {
		if err := e.member.plain.Flush(); err != nil {
			return err
		}
	}
	return out.Flush()
}

func (e *encoder) bookmark(out *exchange.ChunkWriter, object []byte) (err error) {
	buf := e.plain(out).Pending()
	*buf, err = e.plan.Form.AppendBookmark(*buf, object)
	return err
}

// appendEnd writes an ERROR event if a new watch from the client's resourceVersion might succeed
// but miss changes, or would be refused. There are five such cases. A cache that started again may
// reach that resourceVersion by another history. A relist may have skipped changes that this watch
// cannot deliver. The log may have left the watch behind between two deletions of one revision. The
// client may read other namespaces now, or the watch is one that cannot be resumed.
func (e *encoder) appendEnd(out *exchange.ChunkWriter, c *watchcache.Cache, err error) {
	switch {
	case errors.Is(err, grants.ErrChanged):
	case errors.Is(err, exchange.ErrRevoked): // the client watches again and is refused
		return
	case e.plan.Anew:
		err = errAnew
	case !errors.Is(err, watchcache.ErrTooOld):
		now, gone := c.Snapshot()
		inside := errors.Is(err, watchcache.ErrLagged) && c.Resource().NoWatchCache
		if gone != nil || !inside && !errors.Is(err, watchcache.ErrEnded) {
			return
		}
		err = &watchcache.TooOldError{From: e.plan.Start, Oldest: now.ResourceVersion()}
	}
	to, status := e.plain(out), Expired(c, err)
	buf := to.Pending()
	*buf = e.plan.Form.AppendError(*buf, &status)
	_ = to.Flush() // the watch ends either way
}

// add appends an event. If there is no room for the event, add flushes first. If an event is larger
// than a piece and its form allows it, add writes the event from the cache's own bytes.
func (e *encoder) add(out *exchange.ChunkWriter, kind watchcache.EventType, o wire.Object) error {
	size := len(o.Bytes()) + watchcache.EventOverhead
	if err := out.MakeRoom(size); err != nil {
		return err
	}
	if size <= exchange.PieceSize {
		return e.put(out, kind, o)
	}
	buf := out.Pending()
	head, body, tail, ok := e.plan.Form.SplitEvent(*buf, kind.String(), o)
	if !ok {
		return e.putLarge(out, kind, o)
	}
	*buf = head
	return out.FlushWith(body, tail)
}

func (e *encoder) put(
	out *exchange.ChunkWriter, kind watchcache.EventType, o wire.Object,
) (err error) {
	buf := out.Pending()
	if *buf, err = e.plan.Form.AppendEvent(*buf, kind.String(), o); err != nil {
		return &unwritableError{err}
	}
	return nil
}

// putLarge is put for a large event of this watch alone, and writes it at once. It waits for room
// without a slot, and for the client with neither. Without room the watch ends. The next watch may
// find room: upstream does not answer it, because one user's watches would then decide for all
// users.
func (e *encoder) putLarge(
	out *exchange.ChunkWriter, kind watchcache.EventType, o wire.Object,
) error {
	size := int64(len(o.Bytes()))
	e.meter.ReleaseSlot()
	if err := e.room.Hold(size); err != nil {
		return fmt.Errorf("%w for an event of %d bytes: %w", errNoRoom, size, err)
	}
	defer e.room.Free(size)
	if err := e.meter.Spend(e.plan.Cost * size); err != nil {
		return err
	}
	err := e.put(out, kind, o)
	e.meter.ReleaseSlot()
	if err != nil {
		return err
	}
	return out.Flush()
}

func (e *encoder) append(out *exchange.ChunkWriter, d *watchcache.Delta) error {
	if e.plan.Choice.Table {
		e.rows.AwaitLate(d.RV)
		size := len(d.Object.Bytes())
		if size > exchange.PieceSize {
			return e.putLarge(e.plain(out), d.Type, shownAt(d))
		}
		if err := e.meter.Spend(e.plan.Cost * int64(size)); err != nil {
			return err
		}
	}
	if e.member == nil && !e.shares(d) {
		return e.put(out, d.Type, shownAt(d))
	}
	made, err := e.event(d)
	if err != nil {
		return &unwritableError{err}
	}
	if len(out.Buf)+made.size() > exchange.PieceSize {
		e.meter.ReleaseSlot() // before the wait for room, and for the client
	}
	if made.size() > 2*exchange.PieceSize && e.room != nil {
		if err = made.hold(e.room); err != nil {
			return fmt.Errorf("%w for an event of %d bytes: %w", errNoRoom, made.size(), err)
		}
		defer made.free()
	}
	switch {
	case made.hidden:
		d.Received = 0 // so that it does not count as delivered
	case e.member != nil:
		err = e.member.add(made.segment)
	default:
		err = out.Add(made.plain)
	}
	runtime.KeepAlive(made) // so that other watches find it meanwhile
	return err
}

// shares reports whether the bytes of an uncompressed event are not the cache's own, and large.
func (e *encoder) shares(d *watchcache.Delta) bool {
	size := len(d.Object.Bytes())
	switch {
	case e.plan.Choice.Table || e.shared == nil: // a Table depends on its watch
		return false
	case e.plan.Choice.Fields != nil:
		return true // whether the event changes a field is found out only once
	case e.plan.Form.Verbatim():
		return size > exchange.PieceSize && d.Object.ResourceVersion() != d.RV
	}
	return size > sharedFrom
}

// shown is an object at the resourceVersion of an event.
type shown struct {
	*object.Object
	written uint64 // the resourceVersion of its content
}

func (s shown) Written() uint64 { return s.written }

func shownAt(d *watchcache.Delta) wire.Object {
	if d.Object.ResourceVersion() != d.RV {
		return shown{d.Object.At(d.RV), d.Object.ResourceVersion()}
	}
	return d.Object
}
