package documents

import (
	"container/list"
	"sync"
)

// recent is a map of bounded size that drops the least recently used entries.
type recent[K comparable, V any] struct {
	most int64
	mu   struct {
		sync.Mutex
		size  int64
		order list.List // of *entry, most recently used first
		at    map[K]*list.Element
	}
}

type entry[K comparable, V any] struct {
	key   K
	value V
	size  int64
}

func newRecent[K comparable, V any](most int64) *recent[K, V] {
	r := &recent[K, V]{most: most}
	r.mu.at = map[K]*list.Element{}
	return r
}

// get returns the value of a key, or the zero value.
func (r *recent[K, V]) get(key K) (value V) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if e := r.mu.at[key]; e != nil {
		r.mu.order.MoveToFront(e)
		value = e.Value.(*entry[K, V]).value
	}
	return value
}

// put sets the value of a key.
func (r *recent[K, V]) put(key K, value V, size int64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if e := r.mu.at[key]; e != nil {
		r.dropLocked(e)
	}
	r.mu.at[key] = r.mu.order.PushFront(&entry[K, V]{key, value, size})
	for r.mu.size += size; r.mu.size > r.most; {
		r.dropLocked(r.mu.order.Back())
	}
}

// drop removes a key.
func (r *recent[K, V]) drop(key K) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if e := r.mu.at[key]; e != nil {
		r.dropLocked(e)
	}
}

func (r *recent[K, V]) dropLocked(e *list.Element) {
	dropped := r.mu.order.Remove(e).(*entry[K, V])
	delete(r.mu.at, dropped.key)
	r.mu.size -= dropped.size
}
