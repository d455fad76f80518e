package conformance

import (
	"cmp"
	"iter"
	"maps"
	"slices"
	"sort"
)

// Reference is the apiserver's own history of one selection: the state at a resourceVersion, and
// every event after it. It comes from a watch of the apiserver with the same selectors, so the
// validator does not have to evaluate selectors.
type Reference struct {
	Since  uint64
	State  []Event // at Since: ADDED events in key order
	Events []Event // after Since: the whole history, in order
}

// End is the resourceVersion of the last event.
func (r *Reference) End() uint64 {
	if len(r.Events) == 0 {
		return r.Since
	}
	return r.Events[len(r.Events)-1].RV
}

// after returns the index of the first event whose RV is above rv.
func (r *Reference) after(rv uint64) int {
	return sort.Search(len(r.Events), func(i int) bool { return r.Events[i].RV > rv })
}

// between returns the events in (from, to].
func (r *Reference) between(from, to uint64) []Event {
	if to <= from {
		return nil
	}
	return r.Events[r.after(from):r.after(to)]
}

// at returns the event with a resourceVersion.
func (r *Reference) at(rv uint64) (Event, bool) {
	if i := r.after(rv); i > 0 && r.Events[i-1].RV == rv {
		return r.Events[i-1], true
	}
	return Event{}, false
}

// states iterates over the states from rv on, each with the resourceVersion at which it began. The
// map is reused.
func (r *Reference) states(rv uint64) iter.Seq2[uint64, map[string]Event] {
	return func(yield func(uint64, map[string]Event) bool) {
		rv = max(rv, r.Since)
		state := map[string]Event{}
		for _, e := range r.State {
			state[e.Key] = e
		}
		apply(state, r.between(r.Since, rv))
		if !yield(rv, state) {
			return
		}
		for _, e := range r.Events[r.after(rv):] {
			if apply(state, []Event{e}); !yield(e.RV, state) {
				return
			}
		}
	}
}

func apply(state map[string]Event, events []Event) {
	for _, e := range events {
		if e.Type == "DELETED" {
			delete(state, e.Key)
		} else {
			state[e.Key] = e.added()
		}
	}
}

// stateAt returns the state at rv in the form of a watch's initial events.
func (r *Reference) stateAt(rv uint64) []Event {
	for _, state := range r.states(rv) {
		return slices.SortedFunc(maps.Values(state), func(a, b Event) int { return cmp.Compare(a.Key, b.Key) })
	}
	panic("BUG: no state")
}
