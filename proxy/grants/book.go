package grants

import (
	"container/list"
	"crypto/sha256"
	"sync"
	"time"
)

const (
	// most limits the memory of all decisions, in bytes, and userMost that of a user's. TestBytes
	// compares the costs with the memory in use.
	most     = 64 << 20
	userMost = 4 << 20
	// verdictCost is the cost of a decision, and grantsCost that of grants without decisions.
	verdictCost = 128
	grantsCost  = 1 << 10
	// idle is the time after which unused grants are dropped.
	idle = time.Hour
)

// Book has the grants of all users.
type Book struct {
	mu     sync.Mutex
	grants map[Key]*Grants
	recent list.List // of *Grants, most recently used first
	bytes  int
	users  map[string]int // bytes
	floors map[any]floor  // by cache
}

// floor is the resourceVersion below which dropped grants may have been used.
type floor struct{ epoch, rv uint64 }

// Key says whose grants they are, and for what. resourceVersions of different caches and epochs
// cannot be compared.
type Key struct {
	Question [sha256.Size]byte // differs between users, resources and selectors
	User     string            // whose share of the memory is used
	Cache    any
	Epoch    uint64
}

// held is what the book knows of grants.
type held struct {
	key   Key
	bytes int
	used  time.Time
	place *list.Element
	floor uint64 // states below may have been shown with other sets
}

// NewBook returns an empty book.
func NewBook() *Book {
	return &Book{grants: map[Key]*Grants{}, users: map[string]int{}, floors: map[any]floor{}}
}

// Of returns grants. The cache's newest resourceVersion must not be below any that was shown.
func (b *Book) Of(k Key, newest func() uint64) *Grants {
	b.mu.Lock()
	defer b.mu.Unlock()
	for oldest := b.recent.Back(); oldest != nil; oldest = b.recent.Back() {
		if g := oldest.Value.(*Grants); time.Since(g.held.used) < idle {
			break
		}
		b.dropLocked(oldest.Value.(*Grants))
	}
	g := b.grants[k]
	if g == nil {
		g = &Grants{book: b, turn: make(chan struct{}, 1), newest: newest}
		g.list, g.watch = side{verb: "list", verdicts: map[string]verdict{}}, side{verb: "watch", verdicts: map[string]verdict{}}
		g.held = held{key: k, place: b.recent.PushFront(g)}
		if f := b.floors[k.Cache]; f.epoch == k.Epoch {
			g.held.floor = f.rv
		}
		b.grants[k] = g
		b.growLocked(g, grantsCost)
	}
	g.held.used = time.Now()
	b.recent.MoveToFront(g.held.place)
	return g
}

// used records the number of decisions that grants have, and drops others if there are too many.
func (b *Book) used(g *Grants, verdicts int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if g.dropped.Load() {
		return
	}
	b.growLocked(g, grantsCost+verdicts*verdictCost-g.held.bytes)
	for e := b.recent.Back(); e != nil && b.users[g.held.key.User] > userMost; {
		oldest := e.Value.(*Grants)
		e = e.Prev()
		if oldest.held.key.User == g.held.key.User {
			b.dropLocked(oldest)
		}
	}
	for b.bytes > most {
		b.dropLocked(b.recent.Back().Value.(*Grants))
	}
}

func (b *Book) growLocked(g *Grants, by int) {
	user := g.held.key.User
	g.held.bytes += by
	b.bytes += by
	if b.users[user] += by; b.users[user] == 0 {
		delete(b.users, user)
	}
}

// dropLocked forgets grants. Their open watches end, and new grants for the same begin above all that
// these have shown.
func (b *Book) dropLocked(g *Grants) {
	g.dropped.Store(true)
	k := g.held.key
	if f := b.floors[k.Cache]; k.Epoch >= f.epoch {
		b.floors[k.Cache] = floor{k.Epoch, max(f.rv, g.newest()+1)} // after Store, as in become
	}
	b.growLocked(g, -g.held.bytes)
	b.recent.Remove(g.held.place)
	delete(b.grants, k)
}

// deniedTTL is the shortest time for which a namespace stays denied, so that not too many are reviewed
// again and again.
func (b *Book) deniedTTL() time.Duration {
	b.mu.Lock()
	defer b.mu.Unlock()
	return time.Duration(b.bytes/verdictCost) * time.Second / deniedRate
}

// Held returns the number of grants and their bytes.
func (b *Book) Held() (count, bytes int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return len(b.grants), b.bytes
}
