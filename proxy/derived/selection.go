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

// Selection knows which objects of pages a selector selects. Controllers list by the same
// few selectors again and again, and pages do not change: what was found out about one
// holds for as long as it is part of the collection. A list then looks at the pages that
// are new, and at what is selected; to look at each object of a large collection is to wait
// for memory once or twice for each.
//
// What a selector selects is remembered from its second use on: many are of somebody who
// comes once, each node with its own.
type Selection struct {
	derived *Store
	meter   *fair.Meter
	key     derivedKey
	filter  *filter.Filter
	used    bool              // before
	Known   map[uint64]uint64 // what is selected, by the page's ID; shared, not modified
	found   map[uint64]uint64 // what was not known
}

// Selection returns what is known about what a filter selects.
func (d *Store) Selection(m *fair.Meter, f *filter.Filter, of *object.Resource) *Selection {
	s := &Selection{derived: d, meter: m, filter: f}
	// The selectors may be as long as a URI, and nobody may send some that collide with another's.
	s.key.selection = sha256.Sum256(fmt.Append(nil, of.GVR, of.Encoding, f.ID()))
	if p := d.lookup(s.key); p != nil {
		s.used, s.Known = true, p.selected
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
	if s.used {
		if s.found == nil {
			s.found = map[uint64]uint64{}
		}
		s.found[p.ID()] = selected
	}
	return selected, nil
}

// Keep remembers what was found about a collection of so many objects, beside what others
// have found meanwhile, and forgets the pages that were replaced when they are most of it.
func (s *Selection) Keep(objects int) {
	const objectsPerPage, few = 16, 64 // of pages that are a quarter full
	switch {
	case !s.used:
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
