package table

import (
	"runtime"
	"sync"
	"sync/atomic"
	"weak"

	"go.uber.org/zap"

	"github.com/watchproxy/watchproxy/watchcache"
)

// Registry has the rules of all caches of rows.
type Registry struct {
	Log   *zap.Logger
	rules sync.Map // by weak pointers to caches
	last  atomic.Uint64
}

// Of returns the rules of a cache in its present epoch. They do not keep the cache in memory.
func (g *Registry) Of(cache *watchcache.Cache) *Rules {
	key, epoch := weak.Make(cache), cache.Stats().Epoch
	known, ok := g.rules.Load(key)
	if ok && known.(*Rules).epoch == epoch {
		return known.(*Rules)
	}
	rules := newRules(cache.Resource())
	rules.ID, rules.epoch = g.last.Add(1), epoch
	rules.log = g.Log.With(zap.Stringer("resource", cache.Resource().GVR))
	g.rules.Store(key, rules)
	if !ok {
		forget := func(key weak.Pointer[watchcache.Cache]) { g.rules.Delete(key) }
		runtime.AddCleanup(cache, forget, key)
	}
	return rules
}
