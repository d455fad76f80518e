package table

import (
	"sync/atomic"

	"go.uber.org/zap"

	"github.com/watchproxy/watchproxy/watchcache"
)

// Registry makes the rules of caches of rows. A cache keeps its own.
type Registry struct {
	Log  *zap.Logger
	last atomic.Uint64
}

type note struct{}

// Of returns the rules of a cache in its present epoch.
func (g *Registry) Of(cache *watchcache.Cache) *Rules {
	epoch := cache.Stats().Epoch
	known, _ := cache.Notes.Load(note{})
	if rules, ok := known.(*Rules); ok && rules.epoch == epoch {
		return rules
	}
	rules := newRules(cache.Resource())
	rules.ID, rules.epoch = g.last.Add(1), epoch
	rules.log = g.Log.With(zap.Stringer("resource", cache.Resource().GVR))
	cache.Notes.Store(note{}, rules)
	return rules
}
