package watchcache

import (
	"fmt"

	"github.com/watchproxy/watchproxy/watchcache/object"
	"github.com/watchproxy/watchproxy/watchcache/tree"
)

// FastForward publishes a state that upstream returned on request, ahead of the log. The objects
// are sorted by key, and rv is their resourceVersion. Readers see the state immediately:
// [Cache.Snapshot] and [Cache.WaitFresh] return it until the log reaches rv. Watches do not see it,
// because a state does not show the changes that led to it. They go on with the log, which stays
// complete. A watch that starts at rv gets none of the log's events up to rv (see [Cache.Watch]).
//
// FastForward does nothing if rv is not newer than the state that readers see. It fails with
// [ErrDiverged] and changes nothing if the objects cannot be a later state of the cache.
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

// Confirm compares the log's newest state with a list of versions that upstream returned on
// request. The list is sorted by key, and rv is its resourceVersion. If both hold the same objects
// in the same versions, Confirm publishes the log's state as the state at rv, as
// [Cache.FastForward] does. It returns whether readers now see a state at rv or later.
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

// Carry publishes the newest state as the state at rv, if that newest state has the resourceVersion
// since. The caller knows that nothing changed between since and rv. Carry returns whether it
// published.
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

// newest returns the newest state that readers may see.
func (v *view) newest() Snapshot {
	if v.ahead.rv > v.rv {
		return v.ahead
	}
	return Snapshot{v.tree, v.rv, v.epoch}
}
