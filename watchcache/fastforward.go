package watchcache

import (
	"fmt"
	"slices"

	"github.com/watchproxy/watchproxy/watchcache/object"
	"github.com/watchproxy/watchproxy/watchcache/tree"
)

// FastForward publishes a state from upstream ahead of the log. The objects are sorted by key, and
// rv is their resourceVersion. Readers see the state until the log reaches rv. Watches continue
// with the log. A watch that starts at rv skips the log's events up to rv.
//
// If rv is not newer than the state that readers see, FastForward does nothing. If the objects
// cannot be a later state of the cache, it returns [ErrDiverged] and changes nothing.
func (w *Writer) FastForward(objects []*object.Object, rv uint64) error {
	v := w.filled()
	if rv <= v.newest().rv {
		return nil
	}
	// Bytes of built-in objects may differ: one address may lead to two versions of kube-apiserver.
	r := &w.cache.resource
	exact := r.SelfDescribing && r.Encoding != object.Table
	sets, deletions, err := v.difference(objects, rv, exact)
	if err != nil {
		return fmt.Errorf("fast-forward: %w", err)
	}
	state := v.tree
	for _, d := range deletions {
		state, _ = state.Delete(d.object.Key())
	}
	for _, o := range sets {
		state, _ = state.Set(o)
	}
	w.runAhead(v, state, rv, rv)
	return nil
}

// Confirm publishes the log's newest state as the state at rv, if it equals states: upstream's
// object versions at rv, sorted by key. It reports whether readers see a state at rv or later.
func (w *Writer) Confirm(states []object.State, rv uint64) bool {
	v := w.filled()
	if rv <= v.newest().rv {
		return true
	}
	log := Snapshot{v.tree, v.rv, v.epoch}
	if _, differ := log.Differences(states, 0); differ > 0 {
		return false
	}
	w.runAhead(v, v.tree, rv, rv)
	return true
}

// Carry publishes the newest state as the state at rv, if it is the state at since. The caller must
// have a proof that nothing changed between since and rv. Carry reports whether it published.
func (w *Writer) Carry(since, rv uint64) bool {
	v := w.filled()
	newest := v.newest()
	if newest.rv != since || rv <= since {
		return false
	}
	if v.ahead.rv > v.rv {
		since = v.aheadSince
	}
	w.runAhead(v, newest.Tree, since, rv)
	return true
}

// runAhead publishes the state that upstream has had from since to rv.
func (w *Writer) runAhead(v *view, state tree.Tree, since, rv uint64) {
	next := *v
	if v.ahead.rv > v.rv && since > v.ahead.rv {
		known := v.passed
		if len(known) == mostPassed {
			known = known[1:]
		}
		next.passed = append(slices.Clip(known), passed{v.ahead, v.aheadSince})
	}
	next.ahead, next.aheadSince = Snapshot{state, rv, v.epoch}, since
	w.publish(&next)
}

// passed is a state that was ahead of the log, and still is. A list that began with it continues.
type passed struct {
	Snapshot

	since uint64
}

const mostPassed = 64

// before returns the state at rv, which is above the log's.
func (v *view) before(rv uint64) (Snapshot, bool) {
	for _, p := range append(slices.Clip(v.passed), passed{v.ahead, v.aheadSince}) {
		if p.since <= rv && rv <= p.rv {
			return Snapshot{p.Tree, rv, v.epoch}, true
		}
	}
	return Snapshot{}, false
}

func (v *view) newest() Snapshot {
	if v.ahead.rv > v.rv {
		return v.ahead
	}
	return Snapshot{v.tree, v.rv, v.epoch}
}
