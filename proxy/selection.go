package proxy

import (
	"crypto/sha256"
	"fmt"
	"iter"
	"maps"
	"math/bits"

	"github.com/watchproxy/watchproxy/proxy/fair"
	"github.com/watchproxy/watchproxy/watchcache"
)

// selection knows which objects of pages a selector selects. Controllers list by the same
// few selectors again and again, and pages do not change: what was found out about one
// holds for as long as it is part of the collection. A list then looks at the pages that
// are new, and at what is selected; to look at each object of a large collection is to wait
// for memory once or twice for each.
//
// What a selector selects is remembered from its second use on: many are of somebody who
// comes once, each node with its own.
type selection struct {
	derived *Derived
	meter   *fair.Meter
	key     derivedKey
	filter  *watchcache.Filter
	used    bool              // before
	known   map[uint64]uint64 // what is selected, by the page's ID; shared, not modified
	found   map[uint64]uint64 // what was not known
}

// selectionOf returns what is known about the selection of a read.
func (r *read) selectionOf() *selection {
	s := &selection{derived: r.derived, meter: &r.meter, filter: r.filter}
	// The selectors may be as long as a URI, and whoever sends them must not hit upon another's.
	s.key.selection = sha256.Sum256(fmt.Append(nil, r.GVR, r.resource.Encoding, r.filter.ID()))
	if p := r.derived.lookup(s.key); p != nil {
		s.used, s.known = true, p.selected
	}
	return s
}

// of returns the selected objects of a span's page, as bits.
func (s *selection) of(span watchcache.Span) (uint64, error) {
	p := span.Page
	if selected, ok := s.known[p.ID()]; ok {
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

// keep remembers what was found about a collection of so many objects, beside what others
// have found meanwhile, and forgets the pages that were replaced when they are most of it.
func (s *selection) keep(objects int) {
	const objectsPerPage, few = 16, 64 // of pages that are a quarter full
	switch {
	case !s.used:
		s.derived.keep(&piece{key: s.key, selected: map[uint64]uint64{}})
		return
	case len(s.found) == 0:
		return
	}
	if p := s.derived.lookup(s.key); p != nil && len(p.selected)+len(s.found) <= objects/objectsPerPage+few {
		maps.Copy(s.found, p.selected)
	}
	s.derived.keep(&piece{key: s.key, selected: s.found})
}

// spans walks what a read selects in a key range: pages or, by a selector, runs of
// objects in them. It ends early if the meter has an error.
func (r *read) spans(snapshot watchcache.Snapshot, from, to string) iter.Seq[watchcache.Span] {
	switch {
	case !r.filter.Selective():
		return snapshot.Spans(from, to)
	case r.filter.Single():
		return r.single(snapshot)
	}
	return func(yield func(watchcache.Span) bool) {
		selection := r.selectionOf()
		defer selection.keep(snapshot.Len())
		for span := range snapshot.Spans(from, to) {
			selected, err := selection.of(span)
			if err != nil || !eachOf(span, selected, yield) {
				return
			}
		}
	}
}

// spansAhead is spans for somebody who takes long over it: it selects before, and selects nothing if
// the meter has an error.
func (r *read) spansAhead(snapshot watchcache.Snapshot, from, to string) iter.Seq[watchcache.Span] {
	if !r.filter.Selective() || r.filter.Single() {
		return r.spans(snapshot, from, to)
	}
	selection := r.selectionOf()
	defer r.meter.Rest()
	var selected []uint64
	for span := range snapshot.Spans(from, to) {
		of, err := selection.of(span)
		if err != nil {
			return func(func(watchcache.Span) bool) {}
		}
		selected = append(selected, of)
	}
	selection.keep(snapshot.Len())
	return func(yield func(watchcache.Span) bool) {
		page := 0
		for span := range snapshot.Spans(from, to) {
			if !eachOf(span, selected[page], yield) {
				return
			}
			page++
		}
	}
}

// eachOf walks the runs of selected objects in a span.
func eachOf(span watchcache.Span, selected uint64, yield func(watchcache.Span) bool) bool {
	for selected != 0 {
		lo := bits.TrailingZeros64(selected)
		hi := lo + bits.TrailingZeros64(^(selected >> lo))
		selected &= ^uint64(0) << hi
		run := watchcache.Span{Page: span.Page, Lo: max(lo, span.Lo), Hi: min(hi, span.Hi)}
		if run.Lo < run.Hi && !yield(run) {
			return false
		}
	}
	return true
}

// single walks the one object that can be selected, if it is.
func (r *read) single(snapshot watchcache.Snapshot) iter.Seq[watchcache.Span] {
	from, to := r.filter.KeyRange(r.resource)
	return func(yield func(watchcache.Span) bool) {
		for span := range snapshot.Spans(from, to) {
			if r.filter.Matches(span.Objects()[0]) {
				yield(span)
			}
		}
	}
}
