package unwritable

import (
	"runtime"
	"testing"
	"time"

	"github.com/watchproxy/watchproxy/watchcache"
	"github.com/watchproxy/watchproxy/watchcache/cachetest"
)

// Events keeps no cache in memory, and forgets it.
func TestEventsForgetCaches(t *testing.T) {
	var all Events
	func() {
		cache, initial := cachetest.ConfigMaps(t, 1)
		all.Add(cache, watchcache.Delta{Type: watchcache.Added, RV: 1, Object: initial.Get("a/c-000000")})
		if !all.Meets(cache, cachetest.Filter(t, cache), 0) {
			t.Error("the object is not remembered")
		}
	}()
	for range 100 {
		runtime.GC()
		left := 0
		if all.caches.Range(func(any, any) bool { left++; return true }); left == 0 {
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
	t.Error("the cache is still remembered")
}
