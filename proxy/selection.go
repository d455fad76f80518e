package proxy

import (
	"fmt"
	"iter"
	"maps"
	"math/bits"

	"github.com/watchproxy/watchproxy/watchcache"
)

// selection knows which objects of pages a selector selects. Controllers list by the same
// few selectors again and again, and pages do not change: what was found out about one
// holds for as long as it is part of the collection. A list then looks at the pages that
// are new, and at what is selected; to look at each object of a large collection is to wait
// for memory once or twice for each.
type selection struct {
	derived *Derived
	key     derivedKey
	filter  *watchcache.Filter
	known   map[uint64]uint64 // what is selected, by the page's ID; shared, not modified
	found   map[uint64]uint64 // what was not known
	visited int               // pages
}

// selectionOf returns what is known about the selection of a read.
func (r *read) selectionOf() *selection {
	s := &selection{derived: r.derived, filter: r.filter}
	s.key.selection = fmt.Sprint(r.gvr, r.resource.Encoding, r.filter.ID())
	if p := r.derived.lookup(s.key); p != nil {
		s.known = p.selected
	}
	return s
}

// of returns the selected objects of a page, as bits.
func (s *selection) of(p *watchcache.Page) uint64 {
	s.visited++
	if selected, ok := s.known[p.ID()]; ok {
		return selected
	}
	selected := s.filter.Select(p)
	if s.found == nil {
		s.found = map[uint64]uint64{}
	}
	s.found[p.ID()] = selected
	return selected
}

// keep remembers what was found, and forgets what is no longer of use.
func (s *selection) keep() {
	if len(s.found) == 0 {
		return
	}
	if len(s.known)+len(s.found) <= 2*s.visited { // else most are of pages that were replaced, or are elsewhere
		maps.Copy(s.found, s.known)
	}
	s.derived.replace(s.key, &piece{selected: s.found})
}

// spans walks what a read selects in a key range: pages or, by a selector, the objects of
// each.
func (r *read) spans(snapshot watchcache.Snapshot, from, to string) iter.Seq[watchcache.Span] {
	if !r.filter.Selective() {
		return snapshot.Spans(from, to)
	}
	return func(yield func(watchcache.Span) bool) {
		selection := r.selectionOf()
		defer selection.keep()
		for span := range snapshot.Spans(from, to) {
			for left := selection.of(span.Page); left != 0; left &= left - 1 {
				i := bits.TrailingZeros64(left)
				if span.Lo <= i && i < span.Hi && !yield(watchcache.Span{Page: span.Page, Lo: i, Hi: i + 1}) {
					return
				}
			}
		}
	}
}
