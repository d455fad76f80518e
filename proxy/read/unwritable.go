package read

import (
	"runtime"
	"sync"
	"weak"

	"github.com/watchproxy/watchproxy/watchcache"
)

// unwritable has the caches with an object that a watch of metadata or of Tables could not write:
// its metadata has fields that are not known here, as those of a newer apiserver. Such a watch ends,
// and its client watches again from the same resourceVersion. So from then on, upstream answers all
// such watches of the cache. The zero value is empty. References to caches are weak, so they do not
// keep them in memory.
type unwritable struct{ caches sync.Map }

func (u *unwritable) add(cache *watchcache.Cache) {
	key := weak.Make(cache)
	if _, known := u.caches.LoadOrStore(key, nil); !known {
		runtime.AddCleanup(cache, func(key weak.Pointer[watchcache.Cache]) { u.caches.Delete(key) }, key)
	}
}

func (u *unwritable) has(cache *watchcache.Cache) bool {
	_, known := u.caches.Load(weak.Make(cache))
	return known
}
