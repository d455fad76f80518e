package derived

import (
	"cmp"
	"iter"
	"slices"

	"github.com/watchproxy/watchproxy/proxy/fair"
	"github.com/watchproxy/watchproxy/watchcache/object"
	"github.com/watchproxy/watchproxy/watchcache/tree"
)

// Selected walks the objects that a read selects.
type Selected struct {
	Store    *Store
	Meter    *fair.Meter
	Resource *object.Resource
	Filter   *object.Filter
	// Narrowed limits the walk to the objects in the namespaces Within. A Namespace is in itself.
	Narrowed bool
	Within   []string
}

// Selective reports whether the walk has parts of pages that other readers do not need.
func (s *Selected) Selective() bool { return s.Filter.Selective() || s.Narrowed }

// Spans walks the selected objects of a key range. Without a selector, it yields whole pages. With
// a selector, it yields spans within pages. It ends early if the meter has an error.
func (s *Selected) Spans(state tree.Tree, from, to string) iter.Seq[tree.Span] {
	spans := s.within(state, from, to)
	switch {
	case !s.Filter.Selective():
		return spans
	case s.Filter.Single():
		return func(yield func(tree.Span) bool) {
			for span := range spans { // one at most
				if s.Filter.Matches(span.Objects()[0]) {
					yield(span)
				}
			}
		}
	}
	return func(yield func(tree.Span) bool) {
		selection := s.Store.Selection(s.Meter, s.Filter, s.Resource)
		defer selection.Keep(state.Len())
		for span := range spans {
			selected, err := selection.Of(span)
			if err != nil || !EachOf(span, selected, yield) {
				return
			}
		}
	}
}

// Ahead is Spans for slow readers, of all objects. It selects the objects before the walk. If the
// meter has an error, the walk is empty.
func (s *Selected) Ahead(state tree.Tree) iter.Seq[tree.Span] {
	from, to := s.Filter.KeyRange(s.Resource)
	if !s.Filter.Selective() || s.Filter.Single() {
		return s.Spans(state, from, to)
	}
	selection := s.Store.Selection(s.Meter, s.Filter, s.Resource)
	defer s.Meter.ReleaseSlot()
	var selected []uint64
	for span := range s.within(state, from, to) {
		of, err := selection.Of(span)
		if err != nil {
			return func(func(tree.Span) bool) {}
		}
		selected = append(selected, of)
	}
	selection.Keep(state.Len())
	return func(yield func(tree.Span) bool) {
		page := 0
		for span := range s.within(state, from, to) {
			if !EachOf(span, selected[page], yield) {
				return
			}
			page++
		}
	}
}

func (s *Selected) within(state tree.Tree, from, to string) iter.Seq[tree.Span] {
	if !s.Narrowed {
		return state.Spans(from, to)
	}
	return func(yield func(tree.Span) bool) {
		for _, in := range s.ranges(from, to) {
			for span := range state.Spans(in.from, in.to) {
				if !yield(span) {
					return
				}
			}
		}
	}
}

// keyRange contains the keys from ≤ key < to.
type keyRange struct{ from, to string }

// ranges returns the parts of a key range in the reader's namespaces, in the order of keys: a-b/x
// is before a/x.
func (s *Selected) ranges(from, to string) []keyRange {
	all := make([]keyRange, 0, len(s.Within))
	for _, namespace := range s.Within {
		in := keyRange{namespace, namespace + "\x00"}
		if s.Resource.Namespaced {
			in.from, in.to = s.Resource.KeyRange(namespace)
		}
		in.from = max(in.from, from)
		if to != "" {
			in.to = min(in.to, to)
		}
		if in.from < in.to {
			all = append(all, in)
		}
	}
	slices.SortFunc(all, func(a, b keyRange) int { return cmp.Compare(a.from, b.from) })
	return all
}

// Count returns the number of objects in a key range in the reader's namespaces, selected or not.
func (s *Selected) Count(state tree.Tree, from, to string) (n int) {
	if !s.Narrowed {
		return state.Count(from, to)
	}
	for _, in := range s.ranges(from, to) {
		n += state.Count(in.from, in.to)
	}
	return n
}

// Namespaces walks the namespaces that have objects in a key range, selected or not.
func (s *Selected) Namespaces(state tree.Tree) iter.Seq[string] {
	from, to := s.Filter.KeyRange(s.Resource)
	return func(yield func(string) bool) {
		for o := first(state, from, to); o != nil; o = first(state, from, to) {
			name := o.Name()
			from = name + "\x00"
			if s.Resource.Namespaced {
				name = o.Namespace()
				_, from = s.Resource.KeyRange(name)
			}
			if !yield(name) {
				return
			}
		}
	}
}

func first(state tree.Tree, from, to string) *object.Object {
	for span := range state.Spans(from, to) {
		return span.Objects()[0]
	}
	return nil
}
