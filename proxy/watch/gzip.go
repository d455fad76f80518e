package watch

import (
	"runtime"
	"sync"
	"time"
	"unsafe"
	"weak"

	"github.com/watchproxy/watchproxy/proxy/exchange"
	"github.com/watchproxy/watchproxy/proxy/wire"
	"github.com/watchproxy/watchproxy/watchcache"
	"github.com/watchproxy/watchproxy/watchcache/object"
)

// Compression says which watches are compressed, if the client accepts gzip.
type Compression string

// The values of [Compression].
const (
	CompressAlways Compression = "always"
	CompressNever  Compression = "never"
)

// Includes reports whether a watch is compressed. upstream reports whether upstream would compress
// it. Some versions of kube-apiserver compress watches that begin with the state and have bookmarks.
func (c Compression) Includes(upstream bool) bool {
	return c == CompressAlways || c != CompressNever && upstream
}

// member writes a watch as one gzip member. An event is compressed once for all watches. Other
// frames, which belong to this watch alone, are collected in plain and compressed together.
type member struct {
	out   *exchange.ChunkWriter
	plain exchange.ChunkWriter // writes to the member itself
	sum   wire.Sum
}

// compress begins the gzip member.
func (w *Watch) compress(out *exchange.ChunkWriter) {
	m := &member{out: out}
	m.plain = exchange.ChunkWriter{To: m, Unframed: true}
	w.member = m
	buf := out.Pending()
	*buf = append(*buf, wire.GzipHeader...)
}

// plain returns the writer of uncompressed frames.
func (w *Watch) plain(out *exchange.ChunkWriter) *exchange.ChunkWriter {
	if w.member == nil {
		return out
	}
	return &w.member.plain
}

// Write implements io.Writer. It compresses frames that belong to this watch alone.
func (m *member) Write(frames []byte) (int, error) {
	return len(frames), m.add(wire.EventSegment(frames))
}

// add appends a segment to the pending bytes. It does not copy a long segment.
func (m *member) add(s *wire.Segment) error {
	m.sum.Add(s.Sum)
	if err := m.out.MakeRoom(s.Len()); err != nil {
		return err
	}
	buf := m.out.Pending()
	if s.Len() > exchange.PieceSize {
		return m.out.FlushWith(s.Bytes(), nil) // which may wait for the client
	}
	*buf = append(*buf, s.Bytes()...)
	return nil
}

// end completes the gzip member. Without its end, the client notices that the watch is incomplete.
func (m *member) end() {
	if m.plain.Flush() != nil {
		return
	}
	buf := m.out.Pending()
	*buf = append(*buf, m.sum.Trailer()...)
	_ = m.out.Flush() // the client may be gone
}

// segment returns an event in compressed form.
func (w *Watch) segment(d *watchcache.Delta) (*event, error) {
	if w.Choice.Table { // Tables of the same event may have other columns
		e := new(event)
		return e, e.write(w, d)
	}
	e := w.Compressed.find(d, w.Choice)
	e.once.Do(func() {
		if e.err = e.write(w, d); e.err == nil {
			w.Compressed.keep(e, d)
		}
	})
	return e, e.err
}

// event is a compressed event.
type event struct {
	key     eventKey
	of      weak.Pointer[object.Object] // the kept bytes do not keep an object in memory
	once    sync.Once
	segment *wire.Segment
	err     error
}

func (e *event) write(w *Watch, d *watchcache.Delta) error {
	plain, err := w.Form.AppendEvent(nil, d.Type.String(), shownAt(d))
	if err == nil {
		e.segment = wire.EventSegment(plain)
	}
	return err
}

type eventKey struct {
	object uintptr // its address, which another object may have later
	rv     uint64
	kind   watchcache.EventType
	choice wire.Choice
}

const (
	eventShards = 16
	// shardBytes limits the compressed events that a shard keeps.
	shardBytes = 1 << 20
	// eventLife is the age after which an event is not kept. Only watches that catch up need it.
	eventLife = 10 * time.Second
)

// Events has the latest events of all resources in compressed form, up to 16 MiB. While a watch
// writes an event, other watches find that event here and make no second copy, even if it is not
// kept. The zero value is empty.
type Events struct {
	shards [eventShards]struct {
		sync.Mutex
		all   map[eventKey]weak.Pointer[event]
		kept  []*event // oldest first
		bytes int
	}
}

// find returns the place of an event.
func (all *Events) find(d *watchcache.Delta, c wire.Choice) *event {
	key := eventKey{uintptr(unsafe.Pointer(d.Object)), d.RV, d.Type, c} //nolint:gosec // an address, never a pointer again
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

// keep keeps an event for further watches. If there are too many, it drops the oldest.
func (all *Events) keep(e *event, d *watchcache.Delta) {
	if watchcache.SinceMoment(d.Received) > eventLife {
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
	return places + e.segment.Len()
}
