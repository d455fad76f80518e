package derived

import (
	"crypto/sha256"
	"fmt"
	"maps"
	"math/bits"

	"github.com/watchproxy/watchproxy/proxy/fair"
	"github.com/watchproxy/watchproxy/watchcache/filter"
	"github.com/watchproxy/watchproxy/watchcache/object"
	"github.com/watchproxy/watchproxy/watchcache/tree"
)

// Selection knows which objects of pages a selector selects. Controllers list by the same few
// selectors again and again, and pages do not change. So the result for a page holds as long as the
// page is part of the collection. A list then looks only at new pages and at selected objects. If
// it looked at each object of a large collection, it would wait for memory once or twice for each.
//
// Results are kept from a selector's second use on, because many selectors are used only once, such
// as the selectors that each name one node.
type Selection struct {
	derived *Store
	meter   *fair.Meter
	key     derivedKey
	filter  *filter.Filter
	Known   map[uint64]uint64 // selected objects of each page, by page ID; nil before the second use; not modified
	found   map[uint64]uint64 // additions to Known
}

// Selection returns what is known about a filter.
func (d *Store) Selection(m *fair.Meter, f *filter.Filter, of *object.Resource) *Selection {
	s := &Selection{derived: d, meter: m, filter: f}
	// Selectors may be as long as a URI, so the key has their hash. The hash is cryptographic, so
	// no client can send a selector with a colliding hash.
	s.key.selection = sha256.Sum256(fmt.Append(nil, of.GVR, of.Encoding, f.ID()))
	if p := d.lookup(s.key); p != nil {
		s.Known = p.selected
	}
	return s
}

// Of returns the selected objects of a span's page, as bits.
func (s *Selection) Of(span tree.Span) (uint64, error) {
	p := span.Page
	if selected, ok := s.Known[p.ID()]; ok {
		return selected, nil
	}
	if err := s.meter.Spend(int64(span.Hi-span.Lo) * int64(fair.LookCost+fair.CompareCost*s.filter.Cost())); err != nil {
		return 0, err
	}
	selected := s.filter.Select(p)
	if s.Known != nil {
		if s.found == nil {
			s.found = map[uint64]uint64{}
		}
		s.found[p.ID()] = selected
	}
	return selected, nil
}

// Keep keeps the results of this list together with the results of other lists. If there are more
// results than a collection of so many objects has pages, many of them are for replaced pages. Keep
// then keeps only the results of this list.
func (s *Selection) Keep(objects int) {
	const objectsPerPage, few = 16, 64 // pages are at least a quarter full
	switch {
	case s.Known == nil:
		s.derived.keep(&Piece{key: s.key, selected: map[uint64]uint64{}})
		return
	case len(s.found) == 0:
		return
	}
	if p := s.derived.lookup(s.key); p != nil && len(p.selected)+len(s.found) <= objects/objectsPerPage+few {
		maps.Copy(s.found, p.selected)
	}
	s.derived.keep(&Piece{key: s.key, selected: s.found})
}

// EachOf walks the runs of selected objects in a span.
func EachOf(span tree.Span, selected uint64, yield func(tree.Span) bool) bool {
	for selected != 0 {
		lo := bits.TrailingZeros64(selected)
		hi := lo + bits.TrailingZeros64(^(selected >> lo))
		selected &= ^uint64(0) << hi
		run := tree.Span{Page: span.Page, Lo: max(lo, span.Lo), Hi: min(hi, span.Hi)}
		if run.Lo < run.Hi && !yield(run) {
			return false
		}
	}
	return true
}
