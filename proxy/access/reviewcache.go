package access

import (
	"container/heap"
	"container/list"
	"crypto/sha256"
	"sync"
	"time"
)

type key [sha256.Size]byte

const (
	// outcomeCost and holderCost are the fixed costs of an outcome and a holder, in bytes, rounded
	// up. TestMemoryOfOutcomes compares them with the memory in use.
	outcomeCost, holderCost = 360, 320
	// outcomeShare is the part of the bound that one outcome may use: at most 1/outcomeShare.
	outcomeShare = 64
	// renewShare is the part of a TTL in which the outcome is renewed: the last 1/renewShare.
	renewShare = 4
	// renewAgain is the shortest time after which a renewal that has not succeeded is tried again.
	renewAgain = time.Second
	// sweepPause limits the time for which an outcome is kept after it has expired, and after keep.
	sweepPause = 10 * time.Second
)

// reviewCache remembers the results of reviews, each for its TTL and all within a bound in bytes.
// Each outcome belongs to the client that asked first. Above the bound, the largest holder loses
// its least recently used outcomes, so a client that keeps causing reviews evicts only its own. The
// keys are digests, because the requests contain tokens and may be long.
type reviewCache[V any] struct {
	most int
	keep time.Duration // for which the value of an expired outcome is remembered, for last

	mu struct {
		sync.Mutex
		bytes    int
		found    map[key]*outcome[V]
		holders  map[key]*holder[V] // by the digest of the name
		largest  holders[V]
		sweeping bool // a sweep is scheduled
	}
}

type outcome[V any] struct {
	key    key
	value  V
	bytes  int
	until  time.Time
	renew  time.Time // when to begin the next renewal
	holder *holder[V]
	place  *list.Element // element of the holder's list
}

// Ended reports whether a time is over, by the monotonic or by the wall clock. The monotonic clock
// stands still while the machine sleeps, and the wall clock may be set back.
func Ended(until, now time.Time) bool {
	return !now.Before(until) || !now.Round(0).Before(until.Round(0))
}

type holder[V any] struct {
	name   key
	bytes  int
	recent list.List // of *outcome[V], most recently used first
	index  int       // index in the heap
}

func newReviewCache[V any](most int) *reviewCache[V] {
	o := &reviewCache[V]{most: most}
	o.mu.found, o.mu.holders = map[key]*outcome[V]{}, map[key]*holder[V]{}
	return o
}

// get returns an outcome that has not expired. due is true if the caller must renew it, so that
// clients need not wait when it expires: in the last part of its TTL, and after a failure again
// after half of what is left.
func (o *reviewCache[V]) get(k key) (value V, due, ok bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	found, now := o.mu.found[k], time.Now()
	if found == nil || Ended(found.until, now) {
		return value, false, false
	}
	found.holder.recent.MoveToFront(found.place)
	if due = !now.Before(found.renew); due {
		found.renew = now.Add(max(renewAgain, found.until.Sub(now)/2))
	}
	return found.value, due, true
}

// last returns an outcome that may have expired, and so does not count any more.
func (o *reviewCache[V]) last(k key) (value V, ok bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if found := o.mu.found[k]; found != nil {
		return found.value, true
	}
	return value, false
}

// put remembers an outcome, if its TTL is not 0 and its size in bytes is not too large.
func (o *reviewCache[V]) put(of string, k key, value V, bytes int, ttl time.Duration) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if was := o.mu.found[k]; was != nil {
		o.dropLocked(was)
	}
	if bytes += outcomeCost; ttl <= 0 || bytes > o.most/outcomeShare {
		return
	}
	h := o.holderLocked(sha256.Sum256([]byte(of)))
	now := time.Now()
	added := &outcome[V]{
		key:    k,
		value:  value,
		bytes:  bytes,
		until:  now.Add(ttl),
		renew:  now.Add(ttl - ttl/renewShare),
		holder: h,
	}
	added.place = h.recent.PushFront(added)
	o.mu.found[k] = added
	o.growLocked(h, bytes)
	for o.mu.bytes > o.most {
		o.dropLocked(o.mu.largest[0].recent.Back().Value.(*outcome[V]))
	}
	if !o.mu.sweeping {
		o.mu.sweeping = true
		time.AfterFunc(sweepPause, o.sweep)
	}
}

func (o *reviewCache[V]) holderLocked(name key) *holder[V] {
	h := o.mu.holders[name]
	if h == nil {
		h = &holder[V]{name: name}
		o.mu.holders[name] = h
		heap.Push(&o.mu.largest, h)
		o.growLocked(h, holderCost)
	}
	return h
}

func (o *reviewCache[V]) growLocked(h *holder[V], bytes int) {
	o.mu.bytes += bytes
	h.bytes += bytes
	heap.Fix(&o.mu.largest, h.index)
}

func (o *reviewCache[V]) dropLocked(old *outcome[V]) {
	h := old.holder
	delete(o.mu.found, old.key)
	h.recent.Remove(old.place)
	o.growLocked(h, -old.bytes)
	if h.recent.Len() == 0 {
		o.growLocked(h, -holderCost)
		heap.Remove(&o.mu.largest, h.index)
		delete(o.mu.holders, h.name)
	}
}

// sweep drops outcomes that have expired, keep ago. If any are left, it schedules the next sweep.
func (o *reviewCache[V]) sweep() {
	o.mu.Lock()
	defer o.mu.Unlock()
	now := time.Now().Add(-o.keep)
	for _, found := range o.mu.found {
		if Ended(found.until, now) {
			o.dropLocked(found)
		}
	}
	if o.mu.sweeping = len(o.mu.found) > 0; o.mu.sweeping {
		time.AfterFunc(sweepPause, o.sweep)
		return
	}
	// New maps release the memory, because maps do not shrink.
	o.mu.found, o.mu.holders, o.mu.largest = map[key]*outcome[V]{}, map[key]*holder[V]{}, nil
}

type holders[V any] []*holder[V]

func (h *holders[V]) Len() int { return len(*h) }

func (h *holders[V]) Less(i, j int) bool { return (*h)[i].bytes > (*h)[j].bytes }

func (h *holders[V]) Swap(i, j int) {
	all := *h
	all[i], all[j] = all[j], all[i]
	all[i].index, all[j].index = i, j
}

func (h *holders[V]) Push(x any) {
	added := x.(*holder[V])
	added.index = len(*h)
	*h = append(*h, added)
}

func (h *holders[V]) Pop() any {
	last := len(*h) - 1
	popped := (*h)[last]
	(*h)[last] = nil
	*h = (*h)[:last]
	return popped
}
