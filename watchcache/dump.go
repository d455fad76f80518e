package watchcache

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/watchproxy/watchproxy/watchcache/object"
)

// Dump writes the oldest state in the cache and all later events. Restore rebuilds the cache from
// them. If there is no state, Dump returns [ErrNotReady] or [ErrEnded]. The cache may change during
// a Dump.
//
// Numbers are unsigned varints. Byte strings are preceded by their length:
//
//	since rv bookmark
//	objects: count, and for each object its bytes, in key order
//	events:  count, and for each event its type (times two, plus one if a relist found it),
//	         resourceVersion, time (see Moment) and object, in order
//	gaps:    count, and for each gap its two ends
func (c *Cache) Dump(to io.Writer) error {
	v := c.view.Load()
	if v == nil {
		return c.notReady()
	}
	d := dumper{to: bufio.NewWriterSize(to, dumpBuffer)}
	d.number(v.since)
	d.number(v.rv)
	var bookmark []byte
	if b := c.Bookmark(); b != nil {
		bookmark = b.Append(nil, v.rv, false)
	}
	d.bytes(bookmark)
	d.number(uint64(v.base.Len()))
	for o := range v.base.Objects("", "") {
		d.bytes(o.Bytes())
	}
	d.number(v.end - v.first)
	for seq := v.first; seq < v.end; seq++ {
		e := v.event(seq)
		kind := uint64(e.Type) << 1
		if e.jumped {
			kind++
		}
		d.number(kind)
		d.number(e.RV)
		d.number(uint64(e.at))
		d.bytes(e.Object.Bytes())
	}
	d.number(uint64(len(v.gaps)))
	for _, g := range v.gaps {
		d.number(g.after)
		d.number(g.before)
	}
	if d.err == nil {
		d.err = d.to.Flush()
	}
	return d.err
}

const dumpBuffer = 256 << 10

// dumper writes values until the first error. It keeps that error.
type dumper struct {
	to  *bufio.Writer
	err error
}

func (d *dumper) number(n uint64) {
	d.write(binary.AppendUvarint(make([]byte, 0, binary.MaxVarintLen64), n))
}

func (d *dumper) bytes(b []byte) {
	d.number(uint64(len(b)))
	d.write(b)
}

func (d *dumper) write(b []byte) {
	if d.err == nil {
		_, d.err = d.to.Write(b)
	}
}

// ErrMalformedDump means that the bytes are no output of Dump.
var ErrMalformedDump = errors.New("malformed dump")

// dumpMax is the maximum size of an object in a dump, in bytes.
const dumpMax = 64 << 20

// Restore reads a dump of the same resource. It stops at the end of the dump. Readers see the
// result only after a call of publish, so the caller can check the bytes after the dump first.
// publish must be called before the first Reset.
func (c *Cache) Restore(from *bufio.Reader) (rv uint64, publish func(), err error) {
	l := loader{from: from, resource: &c.resource, now: Moment(time.Now())}
	v := &view{epoch: 1, first: 1, end: 1}
	v.since, v.rv = l.number(), l.number()
	newest := v.rv
	bookmark := l.bytes()
	var objects []*object.Object
	for n := l.number(); n > 0 && l.err == nil; n-- {
		o := l.object()
		if l.err == nil && (o.ResourceVersion() > v.since || len(objects) > 0 && objects[len(objects)-1].Key() >= o.Key()) {
			l.fail("%s at %d is out of place", o.Key(), o.ResourceVersion())
		}
		objects = append(objects, o)
	}
	if l.err != nil {
		return 0, nil, l.err
	}
	v.tree, v.rv = c.build(objects), v.since
	v.base = v.tree
	for n := l.number(); n > 0 && l.err == nil; n-- {
		l.event(v)
	}
	if newest < v.rv {
		l.fail("events up to %d, but it ends at %d", v.rv, newest)
	}
	v.rv = newest
	for n := l.number(); n > 0 && l.err == nil; n-- {
		g := gap{l.number(), l.number()}
		if g.after >= g.before || g.before > newest {
			l.fail("gap from %d to %d", g.after, g.before)
		}
		v.gaps = append(v.gaps, g)
	}
	var shape *object.Bookmark
	if len(bookmark) > 0 && l.err == nil {
		shape, _, l.err = c.resource.ParseBookmark(bookmark)
	}
	if l.err != nil {
		return 0, nil, l.err
	}
	return newest, func() {
		if c.view.Load() != nil {
			panic("BUG: Restore after Reset")
		}
		if shape != nil {
			c.SetBookmark(shape)
		}
		c.publish(v)
	}, nil
}

// loader reads values until the first error. It keeps that error.
type loader struct {
	from     *bufio.Reader
	resource *object.Resource
	now      int64
	err      error
}

func (l *loader) fail(format string, args ...any) {
	if l.err == nil {
		l.err = fmt.Errorf("%w: %s", ErrMalformedDump, fmt.Sprintf(format, args...))
	}
}

func (l *loader) number() uint64 {
	if l.err != nil {
		return 0
	}
	n, err := binary.ReadUvarint(l.from)
	if err != nil {
		l.fail("%v", err)
	}
	return n
}

func (l *loader) bytes() []byte {
	n := l.number()
	if n > dumpMax {
		l.fail("%d bytes", n)
	}
	if l.err != nil {
		return nil
	}
	b := make([]byte, n)
	if _, err := io.ReadFull(l.from, b); err != nil {
		l.fail("%v", err)
	}
	return b
}

func (l *loader) object() *object.Object {
	b := l.bytes()
	if l.err != nil {
		return nil
	}
	o, err := l.resource.ParseObject(b)
	if err != nil {
		l.fail("%v", err)
	}
	return o
}

func (l *loader) event(v *view) {
	kind, rv, at := l.number(), l.number(), int64(l.number())
	o := l.object()
	if l.err != nil {
		return
	}
	e, err := v.restored(EventType(kind>>1), o)
	e.RV, e.jumped = rv, kind&1 != 0
	shown := rv
	if e.jumped && e.Type == Deleted {
		shown--
	}
	if err != nil || e.Type != left && o.ResourceVersion() != shown || rv < v.rv {
		l.fail("event of type %d of %s at %d, behind one at %d: %v", kind, o.Key(), rv, v.rv, err)
		return
	}
	e.at = min(at, l.now) // the dump's process may have had a fast clock
	v.append(e)
}

// restored returns the event for a dumped change, given the state v.
func (v *view) restored(kind EventType, o *object.Object) (Event, error) {
	if kind == left {
		if was := v.tree.Get(o.Key()); was != nil && was.UID() == o.UID() {
			return Event{Type: left, Object: o, Prev: was, after: v.tree}, nil
		}
	}
	e, err := v.change(Change{Deleted: kind == Deleted, Object: o})
	if err == nil && e.Type != kind {
		err = fmt.Errorf("%w: it is %d", ErrMalformedDump, e.Type)
	}
	return e, err
}
