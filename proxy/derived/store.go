package derived

import (
	"crypto/sha256"
	"fmt"
	"hash/maphash"
	"runtime"
	"slices"
	"sync"
	"time"
	"weak"

	"github.com/dgraph-io/ristretto/v2"
	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/singleflight"

	"github.com/watchproxy/watchproxy/proxy/fair"
	"github.com/watchproxy/watchproxy/proxy/wire"
	"github.com/watchproxy/watchproxy/watchcache/tree"
)

// Store keeps pieces that were made from pages. An update replaces one page and its pieces; the
// rest of a list stays. A lost piece only has to be made again.
//
// Ristretto keeps the pieces within a budget of bytes, and prefers pieces with frequent reads
// (TinyLFU). With the page as the key, it would keep the pieces of stale pages because their
// frequency is high, and reject those of new pages. So the key of a piece has the slot of its page
// instead, which a page takes over from the page that it replaces. The piece of the newer page then
// deletes the stale piece, uses its room, and inherits its frequency.
//
// If the writer deleted stale pieces when it replaces a page, new pieces would have no frequency.
// In a measurement, the budget was 1.1 times the bytes that were read again and again, and other
// lists were read once. Each update made 20 pieces with the page as the key, 10 if stale pieces
// were also deleted, and 2.3 with the slot as the key. The minimum is 2.
//
// TinyLFU has a price. If the budget is full and readers turn to another list, each piece of the
// new list is made up to ten times before it is kept.
//
// Invariants:
//
//	D1 a piece is returned only for the page, span and form that it was made for
//	D2 the kept pieces cost no more than the limit
//	D3 for one slot, span and form one piece is kept, that of the newest page
type Store struct {
	keeping sync.Mutex // held while a piece is added or the limit changes
	kept    *ristretto.Cache[uint64, *Piece]
	seed    maphash.Seed
	// While a list still writes from a piece, Shared has the piece, even if it is not kept. Later
	// lists find the piece here and make no second copy.
	Shared sync.Map // derivedKey to weak.Pointer[Piece]
	making singleflight.Group
}

// Piece is a run of list items in some form, compressed or not, or the objects that match a
// selector.
type Piece struct {
	key      derivedKey
	Plain    []byte
	Segment  *wire.Segment
	Until    time.Time         // when its ages change; zero for never
	selected map[uint64]uint64 // see Selection
}

// cost returns the size of the piece and of its entry in the store, in bytes.
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
	// usual is the usual size of a piece in bytes. counters is the number of counters for each
	// piece, and least is the minimum for the store.
	const usual, counters, least = 8 << 10, 10, 64
	kept, err := ristretto.NewCache(&ristretto.Config[uint64, *Piece]{
		NumCounters:        max(counters*limit/usual, least),
		MaxCost:            limit,
		BufferItems:        64,
		IgnoreInternalCost: true,
	})
	if err != nil {
		panic("BUG: " + err.Error())
	}
	d := &Store{kept: kept, seed: maphash.MakeSeed()}
	r.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "watchproxy_derived_bytes",
		Help: "Bytes of kept lists, compressed or cut to their metadata, and of what selectors " +
			"select.",
	}, func() float64 { return float64(d.Cost()) }))
	return d
}

// Close empties the store and ends its goroutines. After Close, the store keeps no pieces.
func (d *Store) Close() {
	d.keeping.Lock()
	defer d.keeping.Unlock()
	d.kept.Close()
}

// Cost returns the cost of all kept pieces, in bytes.
func (d *Store) Cost() int64 { return d.kept.MaxCost() - d.kept.RemainingCost() }

// derivedKey names the source and the form of a piece. It has the IDs of pages instead of pointers,
// because pieces must not keep pages in memory.
type derivedKey struct {
	page, behind spanKey
	rows         uint64
	form         FormID
	gzip, first  bool
	events       bool
	selection    [sha256.Size]byte // hash of selectors, for a Selection
}

type spanKey struct {
	page, slot uint64
	lo, hi     int32 // hi is toEnd at the page's end
}

const toEnd = -1

func keyOf(s tree.Span) spanKey {
	if s.Page == nil {
		return spanKey{}
	}
	k := spanKey{s.Page.ID(), s.Page.Slot(), int32(s.Lo), int32(s.Hi)}
	if s.Hi == s.Page.Len() {
		k.hi = toEnd
	}
	return k
}

// slot returns the store's key for a piece: a hash of its derivedKey without the IDs that change
// with updates.
func (d *Store) slot(key derivedKey) uint64 {
	key.page.page, key.behind.page, key.rows = 0, 0, 0
	return maphash.Comparable(d.seed, key)
}

// version grows when a new page, or a new cache of a Table's rows, replaces the old one.
func (k derivedKey) version() uint64 { return k.page.page + k.behind.page + k.rows }

// Variant describes a piece to make from a span of a page.
type Variant struct {
	Behind tree.Span // the run before the span; a compressed span may refer to its end
	Form   FormID
	Gzip   bool
	First  bool // the span begins a list, so no separator precedes it
	Events bool // events of a watch instead of items
	// Cost is how often the bytes of the objects are touched to make the piece.
	Cost int64
	// Rows is the ID of the rules for a Table's rows; later caches have higher IDs.
	Rows  uint64
	Brief bool // the ages stay the same for only a few seconds
}

// Made is what a piece is made of.
type Made struct {
	Plain   []byte
	Context []byte    // the end of the run before a compressed piece
	Until   time.Time // at which ages in the piece change; zero for never
}

// FormID names a form of list items: a choice, and the part of an object that a Table's row has.
type FormID struct {
	Choice     wire.Choice
	RowObjects bool
}

// Get returns a piece, and makes it if necessary. If several readers need the same piece, one
// reader makes it from what produce returns. Each reader first waits for its own turn, through its
// meter. So no reader waits for another reader's turn.
func (d *Store) Get(
	m *fair.Meter, s tree.Span, v Variant, produce func() (Made, error),
) (*Piece, error) {
	key := derivedKey{
		page:   keyOf(s),
		behind: keyOf(v.Behind),
		form:   v.Form,
		gzip:   v.Gzip,
		events: v.Events,
		first:  v.First,
		rows:   v.Rows,
	}
	if p := d.lookup(key); p != nil {
		return p, nil
	}
	if err := m.Spend(v.Cost * s.Bytes()); err != nil {
		return nil, err
	}
	made, err, _ := d.making.Do(fmt.Sprint(key), func() (any, error) {
		// Another read has made the piece while this read waited for its turn.
		if p := d.lookup(key); p != nil {
			return p, nil
		}
		its, err := produce()
		if err != nil {
			return nil, err
		}
		p := &Piece{key: key, Until: its.Until}
		if v.Gzip {
			p.Segment = wire.NewSegment(its.Context, its.Plain, v.Brief)
		} else {
			p.Plain = slices.Clip(its.Plain)
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
	if p, ok := d.kept.Get(d.slot(key)); ok && p.key == key && p.lasts() {
		return p
	}
	if shared, ok := d.Shared.Load(key); ok {
		if p := shared.(weak.Pointer[Piece]).Value(); p != nil && p.lasts() {
			return p
		}
	}
	return nil
}

func (p *Piece) lasts() bool { return p.Until.IsZero() || time.Now().Before(p.Until) }

func (d *Store) share(p *Piece) {
	shared := weak.Make(p)
	d.Shared.Store(p.key, shared)
	runtime.AddCleanup(p, func(key derivedKey) { d.Shared.CompareAndDelete(key, shared) }, p.key)
}

// keep stores a piece in place of the piece of an older page. It deletes the old piece first,
// because ristretto does not make room when a larger piece replaces a smaller one. It returns when
// readers can find the new piece.
func (d *Store) keep(p *Piece) {
	d.keeping.Lock()
	defer d.keeping.Unlock()
	slot := d.slot(p.key)
	if old, ok := d.kept.Get(slot); ok {
		if old.key.version() > p.key.version() {
			return // p is from an old snapshot
		}
		d.kept.Del(slot)
	}
	d.kept.Set(slot, p, p.cost())
	d.kept.Wait()
}

// SetLimit changes the maximum number of kept bytes. It drops excess pieces immediately. Ristretto
// itself would drop them only when the next piece is added.
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
