package watch

import (
	"bytes"
	"runtime"
	"sync"
	"time"
	"unsafe"
	"weak"

	"github.com/watchproxy/watchproxy/proxy/wire"
	"github.com/watchproxy/watchproxy/watchcache"
	"github.com/watchproxy/watchproxy/watchcache/object"
)

// sharedFrom is the size from which a converted object is shared, if it is not compressed. A pump
// shares smaller events.
const sharedFrom = 16 << 10

// event returns the bytes of an event, which watches share.
func (e *encoder) event(d *watchcache.Delta) (*event, error) {
	if e.plan.Choice.Table { // Tables of the same event may have other columns
		own := new(event)
		return own, own.write(e.plan, d)
	}
	shared := e.shared.find(d, e.plan.Choice, e.plan.Compressed)
	shared.once.Do(func() {
		shared.err = errPanicked // unless write returns
		if shared.err = shared.write(e.plan, d); shared.err == nil {
			e.shared.keep(shared, d)
		}
	})
	return shared, shared.err
}

type event struct {
	key     eventKey
	of      weak.Pointer[object.Object] // the kept bytes do not keep an object in memory
	once    sync.Once
	segment *wire.Segment
	plain   []byte
	hidden  bool // the watch's form of the object has not changed
	err     error
	writers struct {
		sync.Mutex
		n    int
		room Room // which has the bytes of a large event, while n > 0
	}
}

// hold claims room for a large event, once for all watches that write it. Clients that do not read
// keep its bytes, which are in no log. Only goroutines that may wait write large events.
func (e *event) hold(in Room) (err error) {
	e.writers.Lock()
	defer e.writers.Unlock()
	if e.writers.n == 0 {
		e.writers.room = in
		err = in.Hold(int64(e.size()))
	}
	if err == nil {
		e.writers.n++
	}
	return err
}

func (e *event) free() {
	e.writers.Lock()
	defer e.writers.Unlock()
	if e.writers.n--; e.writers.n == 0 {
		e.writers.room.Free(int64(e.size()))
	}
}

func (e *event) write(p *Plan, d *watchcache.Delta) error {
	if p.Choice.Fields != nil && !p.Choice.Table && d.Prev != nil && hides(p.Form, d) {
		e.hidden = true
		return nil
	}
	plain, err := p.Form.AppendEvent(nil, d.Type.String(), shownAt(d))
	switch {
	case err != nil:
	case p.Compressed:
		e.segment = wire.EventSegment(plain)
	default:
		e.plain = plain
	}
	return err
}

// hides reports whether a changed object looks the same in a form, apart from its resourceVersion.
func hides(form wire.Form, d *watchcache.Delta) bool {
	was, err := form.AppendItem(nil, d.Prev.At(d.RV))
	if err != nil {
		return false
	}
	is, err := form.AppendItem(nil, shownAt(d))
	return err == nil && bytes.Equal(was, is)
}

type eventKey struct {
	object     uintptr // its address, which another object may have later
	rv         uint64
	kind       watchcache.EventType
	choice     wire.Choice
	compressed bool
}

const (
	eventShards = 16
	// shardBytes limits the events that a shard keeps. From longEvent on, events are kept apart,
	// only the latest longEvents.
	shardBytes, longEvent, longEvents = 1 << 20, 256 << 10, 4
	// eventLife is the age after which an event is not kept. Only watches that catch up need it.
	eventLife = 10 * time.Second
)

// Events has the latest events of all resources that are compressed, or of which each watch would
// make a large copy: up to 16 MiB, and four long ones. While a watch writes an event, other watches
// find that event here and make no second copy, even if it is not kept. The zero value is empty.
type Events struct {
	long struct {
		sync.Mutex
		kept [longEvents]*event
		next int
	}
	shards [eventShards]struct {
		sync.Mutex
		all   map[eventKey]weak.Pointer[event]
		kept  []*event // oldest first
		bytes int
	}
}

func (all *Events) find(d *watchcache.Delta, c wire.Choice, compressed bool) *event {
	address := uintptr(unsafe.Pointer(d.Object)) //nolint:gosec // never a pointer again
	key := eventKey{address, d.RV, d.Type, c, compressed}
	s := &all.shards[d.RV%eventShards]
	s.Lock()
	defer s.Unlock()
	if e := s.all[key].Value(); e != nil && e.of.Value() == d.Object {
		return e
	}
	e := &event{key: key, of: weak.Make(d.Object)}
	if s.all == nil {
		s.all = map[eventKey]weak.Pointer[event]{}
	}
	place := weak.Make(e)
	s.all[key] = place
	runtime.AddCleanup(e, func(key eventKey) {
		s.Lock()
		defer s.Unlock()
		if s.all[key] == place {
			delete(s.all, key)
		}
	}, key)
	return e
}

func (all *Events) keep(e *event, d *watchcache.Delta) {
	if watchcache.SinceMoment(d.Received) > eventLife {
		return
	}
	if e.size() > longEvent {
		all.long.Lock()
		defer all.long.Unlock()
		all.long.kept[all.long.next] = e
		all.long.next = (all.long.next + 1) % longEvents
		return
	}
	s := &all.shards[d.RV%eventShards]
	s.Lock()
	defer s.Unlock()
	s.kept = append(s.kept, e)
	s.bytes += e.size()
	for s.bytes > shardBytes {
		s.bytes -= s.kept[0].size()
		s.kept[0] = nil
		s.kept = s.kept[1:]
	}
}

// size returns the memory of an event and its places, in bytes.
func (e *event) size() int {
	const places = 400
	if e.segment != nil {
		return places + e.segment.Len()
	}
	return places + len(e.plain)
}
