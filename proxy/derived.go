package proxy

import (
	"container/list"
	"crypto/sha256"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"weak"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/singleflight"

	"github.com/watchproxy/watchproxy/proxy/wire"
	"github.com/watchproxy/watchproxy/watchcache"
)

// Derived keeps what was made of pages once: their metadata in another form, their
// bytes compressed. An update replaces a page, and so what was made of it; the
// rest of a list stays. To lose an entry costs making it again.
//
// What was not read for the longest time goes first. Why not what is read least
// often, as ristretto has it, which was here before: what hung on replaced pages was
// read often once. It was kept, and what took its place was refused, so that each
// replaced page was compressed a dozen times, and more as time went on
// (TestChurnCostsOneMakeEach).
type Derived struct {
	mu struct {
		sync.Mutex
		limit   int64
		entries map[derivedKey]*list.Element // of *entry
		recent  *list.List                   // the one read last in front
		cost    int64
	}
	// shared holds weak pointers to pieces by their keys, also to those that are kept no more while
	// lists are still written from them: the next list finds them, and does not make a second copy.
	shared sync.Map // of derivedKey to weak.Pointer[piece]
	making singleflight.Group
	hits   prometheus.Counter
	misses prometheus.Counter
}

type entry struct {
	key   derivedKey
	piece *piece
}

// piece is a run of list items in some form, compressed or not, or what a selector
// selects.
type piece struct {
	plain    []byte
	segment  *wire.Segment
	selected map[uint64]uint64 // see selection
}

func (p *piece) cost() int64 {
	const overhead, each = 256, 40 // bytes, of the entry itself and of those of a map
	if p.selected != nil {
		return int64(each*len(p.selected)) + overhead
	}
	if p.segment != nil {
		return int64(p.segment.Len()) + overhead
	}
	return int64(cap(p.plain)) + overhead
}

// NewDerived returns an empty store of up to limit bytes.
func NewDerived(limit int64, r prometheus.Registerer) *Derived {
	d := &Derived{
		hits: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "watchproxy_derived_hits_total",
			Help: "Runs of list items that were wanted compressed or as metadata only, and had been made before.",
		}),
		misses: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "watchproxy_derived_misses_total",
			Help: "Runs of list items that had to be compressed or cut to their metadata.",
		}),
	}
	d.mu.limit = limit
	d.mu.entries, d.mu.recent = map[derivedKey]*list.Element{}, list.New()
	r.MustRegister(d.hits, d.misses, prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "watchproxy_derived_bytes",
		Help: "Bytes of lists that are kept compressed or cut to their metadata, and of what selectors select.",
	}, func() float64 {
		d.mu.Lock()
		defer d.mu.Unlock()
		return float64(d.mu.cost)
	}))
	return d
}

// derivedKey says what a piece was made of, and how. Pages are named by their IDs, as
// the pieces must not keep them alive.
type derivedKey struct {
	page, behind place
	form         formID
	gzip, object bool
	first        bool
	selection    [sha256.Size]byte // of selectors, and nothing else
}

// place is a span of a page.
type place struct {
	page   uint64
	lo, hi int32
}

func placeOf(s watchcache.Span) place {
	if s.Page == nil {
		return place{}
	}
	return place{s.Page.ID(), int32(s.Lo), int32(s.Hi)}
}

// variant is what is made of a span of a page.
type variant struct {
	behind watchcache.Span // a compressed run may refer to the end of this one
	form   formID
	gzip   bool
	first  bool // of the list: no separator before it
	object bool // a body of its own, not an item
}

func (v variant) key(s watchcache.Span) derivedKey {
	return derivedKey{page: placeOf(s), behind: placeOf(v.behind), form: v.form, gzip: v.gzip, object: v.object, first: v.first}
}

type formID uint8

const (
	keptForm formID = iota
	partialJSONForm
	partialProtobufForm
)

// get returns a piece, made if need be. Of those who want the same at the same time,
// one makes it. A compressed piece is made with the end of what stands before it. The meter is
// that of the read: nobody waits for its turn while others wait for what it makes.
func (d *Derived) get(m *meter, s watchcache.Span, v variant, produce func() (context, plain []byte, err error)) (*piece, error) {
	key := v.key(s)
	if p := d.lookup(key); p != nil {
		d.hits.Inc()
		return p, nil
	}
	cost := cutCost * s.Bytes()
	if v.gzip {
		cost = gzipCost * s.Bytes()
	}
	if err := m.spend(cost); err != nil {
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
		p := &piece{plain: slices.Clip(plain)}
		if v.gzip {
			p = &piece{segment: wire.NewSegment(context, plain)}
		}
		d.keep(key, p)
		d.share(key, p)
		return p, nil
	})
	if err != nil {
		return nil, err
	}
	return made.(*piece), nil
}

func (d *Derived) lookup(key derivedKey) *piece {
	d.mu.Lock()
	defer d.mu.Unlock()
	if e, ok := d.mu.entries[key]; ok {
		d.mu.recent.MoveToFront(e)
		return e.Value.(*entry).piece
	}
	if p, ok := d.shared.Load(key); ok {
		return p.(weak.Pointer[piece]).Value()
	}
	return nil
}

// share lets others find a piece for as long as anybody holds it.
func (d *Derived) share(key derivedKey, p *piece) {
	shared := weak.Make(p)
	d.shared.Store(key, shared)
	runtime.AddCleanup(p, func(key derivedKey) { d.shared.CompareAndDelete(key, shared) }, key)
}

// keep adds a piece, and lets go of what was not read for the longest time.
func (d *Derived) keep(key derivedKey, p *piece) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if _, ok := d.mu.entries[key]; !ok {
		d.addLocked(key, p)
	}
}

// replace is keep for what there may be an older version of.
func (d *Derived) replace(key derivedKey, p *piece) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if e, ok := d.mu.entries[key]; ok {
		d.dropLocked(e)
	}
	d.addLocked(key, p)
}

func (d *Derived) addLocked(key derivedKey, p *piece) {
	if p.cost() > d.mu.limit {
		return
	}
	d.mu.entries[key] = d.mu.recent.PushFront(&entry{key, p})
	d.mu.cost += p.cost()
	d.fitLocked()
}

// SetLimit changes how many bytes are kept at most.
func (d *Derived) SetLimit(limit int64) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.mu.limit = limit
	d.fitLocked()
}

func (d *Derived) fitLocked() {
	for d.mu.cost > d.mu.limit {
		d.dropLocked(d.mu.recent.Back())
	}
}

func (d *Derived) dropLocked(e *list.Element) {
	old := d.mu.recent.Remove(e).(*entry)
	delete(d.mu.entries, old.key)
	d.mu.cost -= old.piece.cost()
}
