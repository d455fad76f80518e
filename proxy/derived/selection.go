package derived

import (
	"crypto/sha256"
	"fmt"
	"maps"
	"math/bits"

	"github.com/watchproxy/watchproxy/proxy/fair"
	"github.com/watchproxy/watchproxy/watchcache/object"
	"github.com/watchproxy/watchproxy/watchcache/tree"
)

// Selection records the objects in each page that match a selector. Controllers list with the same
// few selectors again and again, and pages do not change. So a list checks only the objects of new
// pages. Results are kept from a selector's second use on, because many selectors are used only
// once, such as those that name one node.
type Selection struct {
	derived *Store
	meter   *fair.Meter
	key     derivedKey
	filter  *object.Filter
	last    *tree.Page
	lastHas uint64            // the matching objects of last, which may be walked in several spans
	Known   map[uint64]uint64 // matching objects by page ID; nil before the second use; read-only
	found   map[uint64]uint64 // additions to Known
}

// Selection returns the known results for a filter.
func (d *Store) Selection(m *fair.Meter, f *object.Filter, of *object.Resource) *Selection {
	s := &Selection{
		derived: d,
		meter:   m,
		filter:  f,
	}
	// The key has the hash of the selectors, because they may be as long as a URI. The hash is
	// cryptographic, so clients cannot send selectors with colliding hashes.
	s.key.selection = sha256.Sum256(fmt.Append(nil, of.GVR, of.Encoding, f.ID()))
	if p := d.lookup(s.key); p != nil {
		s.Known = p.selected
	}
	return s
}

// Of returns the matching objects of a span's page, as bits.
func (s *Selection) Of(span tree.Span) (uint64, error) {
	const _ uint = 64 - tree.PageMax // a page has no more objects than there are bits
	p := span.Page
	if selected, ok := s.Known[p.ID()]; ok {
		return selected, nil
	}
	each := int64(fair.Look + fair.Compare*s.filter.Cost())
	if err := s.meter.Spend(int64(span.Hi-span.Lo) * each); err != nil {
		return 0, err
	}
	if p == s.last {
		return s.lastHas, nil
	}
	selected := s.filter.Select(p.Objects())
	s.last, s.lastHas = p, selected
	if s.Known != nil {
		if s.found == nil {
			s.found = map[uint64]uint64{}
		}
		s.found[p.ID()] = selected
	}
	return selected, nil
}

// Keep stores the results of this list together with the results of other lists. If there are more
// results than a collection of this many objects has pages, many results are for replaced pages.
// Keep then stores only the results of this list.
func (s *Selection) Keep(objects int) {
	const objectsPerPage, few = 16, 64 // pages are at least a quarter full
	switch {
	case s.Known == nil:
		s.derived.keep(&Piece{key: s.key, selected: map[uint64]uint64{}})
		return
	case len(s.found) == 0:
		return
	}
	most := objects/objectsPerPage + few
	if p := s.derived.lookup(s.key); p != nil && len(p.selected)+len(s.found) <= most {
		maps.Copy(s.found, p.selected)
	}
	s.derived.keep(&Piece{key: s.key, selected: s.found})
}

// EachOf yields the runs of selected objects in a span.
func EachOf(span tree.Span, selected uint64, yield func(tree.Span) bool) bool {
	for selected != 0 {
		lo := bits.TrailingZeros64(selected)
		hi := lo + bits.TrailingZeros64(^(selected >> lo))
		selected &= ^uint64(0) << hi
		run := span
		run.Lo, run.Hi = max(lo, span.Lo), min(hi, span.Hi)
		if run.Lo < run.Hi && !yield(run) {
			return false
		}
	}
	return true
}
