package unwritable

import (
	"runtime"
	"testing"
	"time"

	"github.com/watchproxy/watchproxy/watchcache"
	"github.com/watchproxy/watchproxy/watchcache/cachetest"
)

// Objects of other namespaces do not end a narrowed watch, even if there are too many of them.
func TestMeetsAmong(t *testing.T) {
	var all Events
	cache, initial := cachetest.ConfigMaps(t, cacheMost)
	f := cachetest.Filter(t, cache)
	for o := range initial.Objects("", "") {
		all.Add(cache, watchcache.Delta{Type: watchcache.Added, RV: o.ResourceVersion(), Object: o})
	}
	for _, test := range []struct {
		among []string
		want  bool
	}{{[]string{"a"}, true}, {[]string{"b"}, false}, {nil, false}} {
		if all.Meets(cache, f.Among(test.among), 0) != test.want {
			t.Errorf("a watch of %v ends: %v", test.among, !test.want)
		}
	}
	runtime.KeepAlive(initial)
}

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
