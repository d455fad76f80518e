package table

import (
	"runtime"
	"sync"
	"weak"

	"github.com/watchproxy/watchproxy/watchcache"
)

// Caches is a set of caches. It does not keep them alive.
type Caches struct{ all sync.Map } // by weak pointers

// Add adds a cache to the set.
func (s *Caches) Add(c *watchcache.Cache) {
	key := weak.Make(c)
	if _, known := s.all.LoadOrStore(key, struct{}{}); !known {
		runtime.AddCleanup(c, func(key weak.Pointer[watchcache.Cache]) { s.all.Delete(key) }, key)
	}
}

// Has reports whether a cache is in the set.
func (s *Caches) Has(c *watchcache.Cache) bool {
	_, ok := s.all.Load(weak.Make(c))
	return ok
}
