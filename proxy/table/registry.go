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

// Of returns the rules of a cache. They do not keep the cache alive.
func (g *Registry) Of(cache *watchcache.Cache) *Rules {
	key := weak.Make(cache)
	if known, ok := g.rules.Load(key); ok {
		return known.(*Rules)
	}
	rules := New(cache.Resource())
	rules.ID = g.last.Add(1)
	rules.log = g.Log.With(zap.Stringer("resource", cache.Resource().GVR))
	made, known := g.rules.LoadOrStore(key, rules)
	if !known {
		runtime.AddCleanup(cache, func(key weak.Pointer[watchcache.Cache]) { g.rules.Delete(key) }, key)
	}
	return made.(*Rules)
}
