package watchcache

import (
	"fmt"

	"github.com/watchproxy/watchproxy/watchcache/object"
	"github.com/watchproxy/watchproxy/watchcache/tree"
)

// FastForward publishes a state that upstream returned on request: objects sorted by key, at rv,
// ahead of the log. Readers see it at once: [Cache.Snapshot] and [Cache.WaitFresh] return it until
// the log reaches rv. Watches do not see it, because a state does not show the changes that led to
// it. They go on with the log, which stays complete. A watch that starts at rv gets none of the
// log's events up to rv (see [Cache.Watch]).
//
// A state at or below the one that readers see changes nothing. FastForward fails with
// [ErrDiverged] and changes nothing if objects cannot be a later state of the cache.
func (c *Cache) FastForward(objects []*object.Object, rv uint64) error {
	v := c.filled()
	if rv <= v.newest().rv {
		return nil
	}
	sets, deletions, err := v.difference(&c.resource, objects, rv)
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
	c.runAhead(v, state, rv)
	return nil
}

// Confirm compares the log's newest state with a state that upstream returned on request: sorted by
// key, at rv. If both hold the same objects in the same versions, Confirm publishes that state as
// of rv, as [Cache.FastForward] does. It returns whether readers see a state at or above rv.
func (c *Cache) Confirm(states []object.State, rv uint64) bool {
	v := c.filled()
	if rv <= v.newest().rv {
		return true
	}
	log := Snapshot{v.tree, v.rv, v.epoch}
	if _, differ := log.Differences(states, 0); differ > 0 {
		return false
	}
	c.runAhead(v, v.tree, rv)
	return true
}

// Carry publishes the newest state as of rv if that state is at since. The caller knows that
// nothing changed between since and rv. Carry returns whether it published.
func (c *Cache) Carry(since, rv uint64) bool {
	v := c.filled()
	newest := v.newest()
	if newest.rv != since || rv <= since {
		return false
	}
	c.runAhead(v, newest.Tree, rv)
	return true
}

// runAhead publishes a state ahead of the log.
func (c *Cache) runAhead(v *view, state tree.Tree, rv uint64) {
	next := *v
	next.ahead = Snapshot{state, rv, v.epoch}
	c.publish(&next)
}

// newest is the newest state for readers.
func (v *view) newest() Snapshot {
	if v.ahead.rv > v.rv {
		return v.ahead
	}
	return Snapshot{v.tree, v.rv, v.epoch}
}
