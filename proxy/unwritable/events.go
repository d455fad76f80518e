package unwritable

import (
	"math"
	"runtime"
	"slices"
	"sync"
	"weak"

	"github.com/watchproxy/watchproxy/watchcache"
	"github.com/watchproxy/watchproxy/watchcache/filter"
	"github.com/watchproxy/watchproxy/watchcache/object"
)

// If this many events of a namespace or of a cache are remembered, no more are added, and upstream
// answers all watches of the namespace or of the cache.
const namespaceMost, cacheMost = 100, 1000

// Events has the events of each cache that watches could not write. The zero value is empty.
type Events struct{ caches sync.Map } // *ofCache by weak pointers to caches

// ofCache has the events of one cache by namespace.
type ofCache struct {
	mu struct {
		sync.Mutex
		events map[string][]event
		count  int
	}
}

// event is an event that a watch could not write.
type event struct {
	object  weak.Pointer[object.Object]
	rv      uint64
	deleted bool // the event shows that the object is gone
}

// Add adds an event of a cache.
func (all *Events) Add(cache *watchcache.Cache, d watchcache.Delta) {
	key := weak.Make(cache)
	of, known := all.caches.LoadOrStore(key, &ofCache{})
	if !known {
		runtime.AddCleanup(cache, func(key weak.Pointer[watchcache.Cache]) { all.caches.Delete(key) }, key)
	}
	if now, ok := nowOf(cache); ok { // otherwise all watches of the cache have ended
		of.(*ofCache).add(&now, d.Object.Namespace(), event{weak.Make(d.Object), d.RV, d.Type == watchcache.Deleted})
	}
}

// Meets reports whether a watch with this filter would end at an event that cannot be written. The
// watch begins after the resourceVersion from, or at the newest state if from is 0.
func (all *Events) Meets(cache *watchcache.Cache, f *filter.Filter, from uint64) bool {
	of, known := all.caches.Load(weak.Make(cache))
	if !known {
		return false
	}
	now, ok := nowOf(cache)
	if !ok {
		return false // the watch fails anyway
	}
	if from == 0 {
		from = math.MaxUint64
	}
	events, full := of.(*ofCache).within(&now, f)
	return full || slices.ContainsFunc(events, func(e event) bool { return e.ends(&now, f, from) })
}

func (o *ofCache) add(now *present, namespace string, e event) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if slices.Contains(o.mu.events[namespace], e) || o.fullLocked(now) || o.namespaceFullLocked(now, namespace) {
		return
	}
	if o.mu.events == nil {
		o.mu.events = map[string][]event{}
	}
	o.mu.events[namespace] = append(o.mu.events[namespace], e)
	o.mu.count++
}

// within returns the events in the filter's namespaces. If full is true, there may be more.
func (o *ofCache) within(now *present, f *filter.Filter) (events []event, full bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.fullLocked(now) && !f.Narrowed() {
		return nil, true
	}
	from, to := f.KeyRange(now.cache.Resource())
	for namespace := range o.mu.events {
		first, end := now.cache.Resource().KeyRange(namespace)
		if end != "" && from >= end || to != "" && first >= to || !f.Includes(namespace) {
			continue
		}
		if o.namespaceFullLocked(now, namespace) {
			return nil, true
		}
		events = append(events, o.mu.events[namespace]...)
	}
	return events, false
}

// fullLocked reports whether the cache has no room for more events, after it has dropped old ones.
func (o *ofCache) fullLocked(now *present) bool {
	if o.mu.count >= cacheMost {
		for namespace := range o.mu.events {
			o.dropLocked(now, namespace)
		}
	}
	return o.mu.count >= cacheMost
}

// namespaceFullLocked is fullLocked for a namespace.
func (o *ofCache) namespaceFullLocked(now *present, namespace string) bool {
	if len(o.mu.events[namespace]) >= namespaceMost {
		o.dropLocked(now, namespace)
	}
	return len(o.mu.events[namespace]) >= namespaceMost
}

// dropLocked drops the events of a namespace at which no watch can end any more.
func (o *ofCache) dropLocked(now *present, namespace string) {
	before := o.mu.events[namespace]
	left := slices.DeleteFunc(slices.Clone(before), func(e event) bool {
		was := e.object.Value()
		return was == nil || e.rv < now.since && !now.has(was)
	})
	o.mu.count += len(left) - len(before)
	if o.mu.events[namespace] = left; len(left) == 0 {
		delete(o.mu.events, namespace)
	}
}

// ends reports whether a watch from a resourceVersion would end at the event.
func (e event) ends(now *present, f *filter.Filter, from uint64) bool {
	shown := e.object.Value()
	switch {
	case shown == nil: // neither the state nor the log has it
		return false
	case from < shown.ResourceVersion(), now.has(shown):
		return f.Matches(shown)
	case from > e.rv || !e.deleted:
		return false
	}
	at, err := now.cache.SnapshotAt(e.rv)
	if err != nil {
		return false // the log has dropped the event
	}
	switch left := at.Get(shown.Key()); {
	case left == nil: // the watch begins after the deletion
		return false
	case left.ResourceVersion() == e.rv && shown.ResourceVersion() < e.rv: // it may have left the selection
		return from < e.rv && f.Matches(shown) && !f.Matches(left)
	default: // a relist shows a removal at the resourceVersion before its gap
		return f.Matches(left)
	}
}

// present is the present state of a cache. A watch can begin at since or later.
type present struct {
	cache *watchcache.Cache
	state watchcache.Snapshot
	since uint64
}

func nowOf(cache *watchcache.Cache) (now present, ok bool) {
	since := cache.Stats().Since
	state, err := cache.Snapshot()
	return present{cache, state, since}, err == nil
}

// has reports whether the state has this version of an object.
func (p *present) has(o *object.Object) bool {
	now := p.state.Get(o.Key())
	return now != nil && now.ResourceVersion() == o.ResourceVersion() && now.UID() == o.UID()
}
