package derived

import (
	"crypto/sha256"
	"fmt"
	"hash/maphash"
	"runtime"
	"slices"
	"sync"
	"weak"

	"github.com/dgraph-io/ristretto/v2"
	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/singleflight"

	"github.com/watchproxy/watchproxy/proxy/fair"
	"github.com/watchproxy/watchproxy/proxy/wire"
	"github.com/watchproxy/watchproxy/watchcache/tree"
)

// Store keeps what was made of pages once: their metadata in another form, their bytes
// compressed, what selectors select. An update replaces a page, and so what was made of it; the
// rest of a list stays. To lose a piece costs making it again.
//
// Ristretto keeps the pieces within a budget of bytes, and prefers those that are read often
// (TinyLFU). By itself it kept stale pages' pieces because their frequency was high, and rejected
// those of the pages that replaced them. So a piece is kept under the slot of its page: the piece
// of a newer page deletes the stale one, has its room, and inherits its frequency.
//
// Why does the writer not delete stale pieces when it replaces a page? New ones would have no
// frequency. With a budget of 1.1 times what is read, beside lists that are read once, an update
// cost 20 makes by page, 10 by page with deletions, 2.3 by slot; it needs 2.
//
// The price of TinyLFU: if readers of a full budget turn to another list, each of its pieces is
// made up to ten times before one is kept, unless somebody still holds it.
//
// Invariants:
//
//	D1 a piece is only returned for the very page, span and form that it was made for
//	D2 the kept pieces cost no more than the limit
//	D3 of one slot, span and form one piece is kept, that of the newest page
type Store struct {
	keeping sync.Mutex // no two pieces are added at once: none is dropped, and each has its own cost
	kept    *ristretto.Cache[uint64, *Piece]
	seed    maphash.Seed
	// shared holds weak pointers to pieces by their keys, also to those that are not kept while
	// lists are still written from them: the next list finds them, and makes no second copy.
	Shared sync.Map // of derivedKey to weak.Pointer[piece]
	making singleflight.Group
	hits   prometheus.Counter
	misses prometheus.Counter
}

// Piece is a run of list items in some form, compressed or not, or what a selector
// selects.
type Piece struct {
	key      derivedKey
	Plain    []byte
	Segment  *wire.Segment
	selected map[uint64]uint64 // see selection
}

// cost is in bytes: those of a piece, and what it takes to keep and find it.
func (p *Piece) cost() int64 {
	switch {
	case p.selected != nil:
		return 400 + 40*int64(len(p.selected))
	case p.Segment != nil:
		return 600 + int64(p.Segment.Len())
	}
	return 600 + int64(cap(p.Plain))
}

// New returns an empty store of up to limit bytes. It must be closed.
func New(limit int64, r prometheus.Registerer) *Store {
	const usual, counters, least = 8 << 10, 10, 64 // bytes of a piece; ristretto's counters for each, and for all
	kept, err := ristretto.NewCache(&ristretto.Config[uint64, *Piece]{
		NumCounters: max(counters*limit/usual, least), MaxCost: limit, BufferItems: 64, IgnoreInternalCost: true, Metrics: true,
	})
	if err != nil {
		panic("BUG: " + err.Error())
	}
	d := &Store{kept: kept, seed: maphash.MakeSeed()}
	d.hits = prometheus.NewCounter(prometheus.CounterOpts{
		Name: "watchproxy_derived_hits_total",
		Help: "Runs of list items that were wanted compressed or as metadata only, and had been made before.",
	})
	d.misses = prometheus.NewCounter(prometheus.CounterOpts{
		Name: "watchproxy_derived_misses_total",
		Help: "Runs of list items that had to be compressed or cut to their metadata.",
	})
	r.MustRegister(d.hits, d.misses, prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "watchproxy_derived_bytes",
		Help: "Bytes of lists that are kept compressed or cut to their metadata, and of what selectors select.",
	}, func() float64 { return float64(d.Cost()) }), prometheus.NewCounterFunc(prometheus.CounterOpts{
		Name: "watchproxy_derived_evictions_total",
		Help: "What was kept of this and is no more: replaced by what was made of a newer page, or without room.",
	}, func() float64 { return float64(kept.Metrics.KeysEvicted()) }), prometheus.NewCounterFunc(prometheus.CounterOpts{
		Name: "watchproxy_derived_rejections_total",
		Help: "What was made and not kept, because all that it could have replaced is read more often.",
	}, func() float64 { return float64(kept.Metrics.SetsRejected()) }))
	return d
}

// Close empties the store and ends its goroutines. Nothing is kept from then on.
func (d *Store) Close() {
	d.keeping.Lock()
	defer d.keeping.Unlock()
	d.kept.Close()
}

// Cost is that of all pieces that are kept.
func (d *Store) Cost() int64 { return d.kept.MaxCost() - d.kept.RemainingCost() }

// derivedKey says what a piece was made of, and how. Pages are named by their IDs, as
// the pieces must not keep them alive.
type derivedKey struct {
	page, behind place
	form         FormID
	gzip, object bool
	first        bool
	selection    [sha256.Size]byte // of selectors, and nothing else
}

// place is a span of a page.
type place struct {
	page, slot uint64
	lo, hi     int32 // hi is toEnd however many objects there are
}

const toEnd = -1

func placeOf(s tree.Span) place {
	if s.Page == nil {
		return place{}
	}
	p := place{s.Page.ID(), s.Page.Slot(), int32(s.Lo), int32(s.Hi)}
	if s.Hi == s.Page.Len() {
		p.hi = toEnd
	}
	return p
}

// slot is where a piece is kept: all of its key but the version.
func (d *Store) slot(key derivedKey) uint64 {
	key.page.page, key.behind.page = 0, 0
	return maphash.Comparable(d.seed, key)
}

// version grows with each page that replaces another.
func (k derivedKey) version() uint64 { return k.page.page + k.behind.page }

// Variant is what is made of a span of a page.
type Variant struct {
	Behind tree.Span // a compressed run may refer to the end of this one
	Form   FormID
	Gzip   bool
	First  bool // of the list: no separator before it
	Object bool // a body of its own, not an item
}

func (v Variant) key(s tree.Span) derivedKey {
	return derivedKey{page: placeOf(s), behind: placeOf(v.Behind), form: v.Form, gzip: v.Gzip, object: v.Object, first: v.First}
}

// FormID names a form of list items.
type FormID uint8

// The forms.
const (
	// KeptForm is that of the cache's own bytes.
	KeptForm FormID = iota
	// PartialJSONForm and PartialProtobufForm are metadata only.
	PartialJSONForm
	PartialProtobufForm
)

// Get returns a piece, made if need be. Of those who want the same at the same time,
// one makes it. A compressed piece is made with the end of what stands before it. The meter is
// that of the read: nobody waits for its turn while others wait for what it makes.
func (d *Store) Get(m *fair.Meter, s tree.Span, v Variant, produce func() (context, plain []byte, err error)) (*Piece, error) {
	key := v.key(s)
	if p := d.lookup(key); p != nil {
		d.hits.Inc()
		return p, nil
	}
	cost := fair.CutCost * s.Bytes()
	if v.Gzip {
		cost = fair.GzipCost * s.Bytes()
	}
	if err := m.Spend(cost); err != nil {
		return nil, err
	}
	made, err, _ := d.making.Do(fmt.Sprint(key), func() (any, error) {
		if p := d.lookup(key); p != nil { // somebody has made it while this read waited for its turn
			d.hits.Inc()
			return p, nil
		}
		d.misses.Inc()
		context, plain, err := produce()
		if err != nil {
			return nil, err
		}
		p := &Piece{key: key}
		if v.Gzip {
			p.Segment = wire.NewSegment(context, plain)
		} else {
			p.Plain = slices.Clip(plain)
		}
		d.share(p)
		d.keep(p)
		return p, nil
	})
	if err != nil {
		return nil, err
	}
	return made.(*Piece), nil
}

func (d *Store) lookup(key derivedKey) *Piece {
	if p, ok := d.kept.Get(d.slot(key)); ok && p.key == key {
		return p
	}
	if p, ok := d.Shared.Load(key); ok {
		return p.(weak.Pointer[Piece]).Value()
	}
	return nil
}

// share lets others find a piece for as long as anybody holds it.
func (d *Store) share(p *Piece) {
	shared := weak.Make(p)
	d.Shared.Store(p.key, shared)
	runtime.AddCleanup(p, func(key derivedKey) { d.Shared.CompareAndDelete(key, shared) }, p.key)
}

// keep replaces what was made of an older page. That is deleted first: ristretto makes no room for a
// larger piece in place of a smaller one. Without the wait, readers would not see the piece yet.
func (d *Store) keep(p *Piece) {
	d.keeping.Lock()
	defer d.keeping.Unlock()
	slot := d.slot(p.key)
	if old, ok := d.kept.Get(slot); ok {
		if old.key.version() > p.key.version() {
			return // p is for readers of an old snapshot
		}
		d.kept.Del(slot)
	}
	d.kept.Set(slot, p, p.cost())
	d.kept.Wait()
}

// SetLimit changes how many bytes are kept at most. Any pieces beyond it go at once. Ristretto would
// evict none before the next piece comes.
func (d *Store) SetLimit(limit int64) {
	d.keeping.Lock()
	defer d.keeping.Unlock()
	d.kept.UpdateMaxCost(limit)
	var slots []uint64
	excess := d.Cost() - limit
	d.kept.IterValues(func(p *Piece) (stop bool) {
		if excess > 0 {
			slots, excess = append(slots, d.slot(p.key)), excess-p.cost()
		}
		return excess <= 0
	})
	for _, slot := range slots {
		d.kept.Del(slot)
	}
	d.kept.Wait()
}
