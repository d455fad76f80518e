package read

import (
	"iter"

	"github.com/watchproxy/watchproxy/proxy/derived"
	"github.com/watchproxy/watchproxy/watchcache"
	"github.com/watchproxy/watchproxy/watchcache/tree"
)

// spans walks the selected objects of a key range. Without a selector, it yields whole pages. With
// a selector, it yields spans within pages. It ends early if the meter has an error.
func (r *read) spans(snapshot watchcache.Snapshot, from, to string) iter.Seq[tree.Span] {
	switch {
	case !r.filter.Selective():
		return snapshot.Spans(from, to)
	case r.filter.Single():
		return r.single(snapshot)
	}
	return func(yield func(tree.Span) bool) {
		selection := r.derived.Selection(&r.meter, r.filter, r.resource)
		defer selection.Keep(snapshot.Len())
		for span := range snapshot.Spans(from, to) {
			selected, err := selection.Of(span)
			if err != nil || !derived.EachOf(span, selected, yield) {
				return
			}
		}
	}
}

// spansAhead is spans for slow readers. It selects the objects before the walk. If the meter has an
// error, the walk is empty.
func (r *read) spansAhead(snapshot watchcache.Snapshot) iter.Seq[tree.Span] {
	from, to := r.filter.KeyRange(r.resource)
	if !r.filter.Selective() || r.filter.Single() {
		return r.spans(snapshot, from, to)
	}
	selection := r.derived.Selection(&r.meter, r.filter, r.resource)
	defer r.meter.ReleaseSlot()
	var selected []uint64
	for span := range snapshot.Spans(from, to) {
		of, err := selection.Of(span)
		if err != nil {
			return func(func(tree.Span) bool) {}
		}
		selected = append(selected, of)
	}
	selection.Keep(snapshot.Len())
	return func(yield func(tree.Span) bool) {
		page := 0
		for span := range snapshot.Spans(from, to) {
			if !derived.EachOf(span, selected[page], yield) {
				return
			}
			page++
		}
	}
}

// single walks the only object that the filter can select.
func (r *read) single(snapshot watchcache.Snapshot) iter.Seq[tree.Span] {
	from, to := r.filter.KeyRange(r.resource)
	return func(yield func(tree.Span) bool) {
		for span := range snapshot.Spans(from, to) {
			if r.filter.Matches(span.Objects()[0]) {
				yield(span)
			}
		}
	}
}
