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

// Store keeps pieces that were made from pages: their metadata in another form, their compressed
// bytes, and what selectors select. An update replaces one page and its pieces; the rest of a list
// stays. If a piece is lost, it only has to be made again.
//
// Ristretto keeps the pieces within a budget of bytes, and prefers those that are read often
// (TinyLFU). Left alone, ristretto kept the pieces of stale pages because their frequency was high.
// It rejected the pieces of the new pages. So a piece is kept under the slot of its page. A page
// takes over the slot of the page that it replaces. The piece of the newer page deletes the stale
// piece, takes its room, and inherits its frequency.
//
// Why does the writer not delete stale pieces when it replaces a page? New pieces would have no
// frequency. In a measurement, the budget was 1.1 times the bytes that were read again and again,
// and other lists were read once. For each update, 20 pieces were made if the key was the page, 10
// if the key was the page and stale pieces were deleted, and 2.3 if the key was the slot. The
// minimum is 2.
//
// TinyLFU has a price. If the budget is full and readers turn to another list, each piece of the
// new list is made up to ten times before it is kept, unless a list that is being written still
// holds it.
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
	// Shared also holds pieces that are not kept but that lists still write from. The next list
	// finds them here and makes no second copy.
	Shared sync.Map // derivedKey to weak.Pointer[Piece]
	making singleflight.Group
	hits   prometheus.Counter
	misses prometheus.Counter
}

// Piece is a run of list items in some form, compressed or not, or what a selector selects.
type Piece struct {
	key      derivedKey
	Plain    []byte
	Segment  *wire.Segment
	Until    time.Time         // when its ages change; zero if they never do
	selected map[uint64]uint64 // see Selection
}

// cost is the size of the piece and of its entry in the store, in bytes.
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
	const usual, counters, least = 8 << 10, 10, 64 // usual bytes of a piece, counters for each piece, fewest counters
	kept, err := ristretto.NewCache(&ristretto.Config[uint64, *Piece]{
		NumCounters: max(counters*limit/usual, least), MaxCost: limit, BufferItems: 64, IgnoreInternalCost: true, Metrics: true,
	})
	if err != nil {
		panic("BUG: " + err.Error())
	}
	d := &Store{kept: kept, seed: maphash.MakeSeed()}
	d.hits = prometheus.NewCounter(prometheus.CounterOpts{
		Name: "watchproxy_derived_hits_total",
		Help: "Compressed or metadata-only runs of list items that had been made before.",
	})
	d.misses = prometheus.NewCounter(prometheus.CounterOpts{
		Name: "watchproxy_derived_misses_total",
		Help: "Runs of list items that had to be compressed or cut to their metadata.",
	})
	r.MustRegister(d.hits, d.misses, prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "watchproxy_derived_bytes",
		Help: "Bytes of kept lists, compressed or cut to their metadata, and of what selectors select.",
	}, func() float64 { return float64(d.Cost()) }), prometheus.NewCounterFunc(prometheus.CounterOpts{
		Name: "watchproxy_derived_evictions_total",
		Help: "Derived pieces that were dropped: replaced by those of a newer page, or without room.",
	}, func() float64 { return float64(kept.Metrics.KeysEvicted()) }), prometheus.NewCounterFunc(prometheus.CounterOpts{
		Name: "watchproxy_derived_rejections_total",
		Help: "Derived pieces that were made and not kept, because all that they could replace is read more often.",
	}, func() float64 { return float64(kept.Metrics.SetsRejected()) }))
	return d
}

// Close empties the store and ends its goroutines. It keeps nothing from then on.
func (d *Store) Close() {
	d.keeping.Lock()
	defer d.keeping.Unlock()
	d.kept.Close()
}

// Cost is the cost of all kept pieces, in bytes.
func (d *Store) Cost() int64 { return d.kept.MaxCost() - d.kept.RemainingCost() }

// derivedKey says what a piece was made from, and how. It has the IDs of pages instead of pointers,
// because pieces must not keep pages alive.
type derivedKey struct {
	page, behind spanKey
	rows         uint64
	form         FormID
	gzip, object bool
	first        bool
	selection    [sha256.Size]byte // hash of selectors, for a Selection
}

// spanKey is a span of a page.
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

// slot returns the store's key for a piece: a hash of its derivedKey without the version.
func (d *Store) slot(key derivedKey) uint64 {
	key.page.page, key.behind.page, key.rows = 0, 0, 0
	return maphash.Comparable(d.seed, key)
}

// version grows when a page replaces another, or the cache of a Table's rows.
func (k derivedKey) version() uint64 { return k.page.page + k.behind.page + k.rows }

// Variant says what is made from a span of a page.
type Variant struct {
	Behind tree.Span // the run before the span: a compressed span may refer to the end of that run
	Form   FormID
	Gzip   bool
	First  bool // the span begins a list, so there is no separator before it
	Object bool // a whole body, not an item
	// Rows is the number of the cache with a Table's rows; later caches have higher ones. Lasts
	// returns until when the ages in the rows just produced stay the same.
	Rows  uint64
	Lasts func() time.Time
}

// FormID names a form of list items.
type FormID uint8

// The forms.
const (
	// KeptForm is the cache's own bytes.
	KeptForm FormID = iota
	// PartialJSONForm and PartialProtobufForm are metadata only.
	PartialJSONForm
	PartialProtobufForm
	// TableForm is a Table's rows. Those with more or less than the metadata of their objects have
	// the next numbers (see wire.Include).
	TableForm
)

// Get returns a piece, and makes it if necessary. If several readers want the same piece, one of
// them makes it. Produce returns the piece's bytes, and for a compressed piece the end of the run
// before it. Each reader waits for its own turn first, through its meter. So no reader waits for
// another reader's turn.
func (d *Store) Get(m *fair.Meter, s tree.Span, v Variant, produce func() (context, plain []byte, err error)) (*Piece, error) {
	key := derivedKey{page: keyOf(s), behind: keyOf(v.Behind), form: v.Form, gzip: v.Gzip, object: v.Object, first: v.First, rows: v.Rows}
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
		if p := d.lookup(key); p != nil { // another read has made it while this one waited for its turn
			d.hits.Inc()
			return p, nil
		}
		d.misses.Inc()
		context, plain, err := produce()
		if err != nil {
			return nil, err
		}
		p := &Piece{key: key}
		if v.Lasts != nil {
			p.Until = v.Lasts()
		}
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

// lasts tells whether the piece's ages are still the present ones.
func (p *Piece) lasts() bool { return p.Until.IsZero() || time.Now().Before(p.Until) }

// share lets other lists find a piece while a list holds it.
func (d *Store) share(p *Piece) {
	shared := weak.Make(p)
	d.Shared.Store(p.key, shared)
	runtime.AddCleanup(p, func(key derivedKey) { d.Shared.CompareAndDelete(key, shared) }, p.key)
}

// keep replaces the piece of an older page. It deletes the old piece first, because ristretto does
// not make room when a larger piece replaces a smaller one. It waits until readers can find the new
// piece.
func (d *Store) keep(p *Piece) {
	d.keeping.Lock()
	defer d.keeping.Unlock()
	slot := d.slot(p.key)
	if old, ok := d.kept.Get(slot); ok {
		if old.key.version() > p.key.version() {
			return // p is of an old snapshot
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
