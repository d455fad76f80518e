package grants

import (
	"container/list"
	"context"
	"crypto/sha256"
	"errors"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/time/rate"
)

const (
	// most limits the memory of all decisions, in bytes, and userMost that of a user's. TestBytes
	// compares the costs with the memory in use.
	most     = 64 << 20
	userMost = 16 << 20
	// verdictCost is the cost of a decision, and grantsCost that of grants without decisions.
	verdictCost = 64
	grantsCost  = 2 << 10
	// idle is the time after which unused grants are dropped, and recent the time for which a
	// user's further grants do not take their place.
	idle, recent = time.Hour, time.Minute

	// parallel is the number of reviews upstream at a time for one read. A user may cause userBurst
	// reviews, and then userRate a second.
	parallel  = 8
	userRate  = 200
	userBurst = 10_000
	// deniedRate and deniedUserRate are the reviews per second of namespaces that were denied, of
	// all users and of one. If there are more, they stay denied for longer than their TTL: for all
	// users together up to deniedStretch times as long.
	deniedRate     = 400
	deniedUserRate = 100
	deniedStretch  = 6
)

// errFull says that a user has too many grants.
var errFull = errors.New("the user reads too many collections of a view at a time")

// moment is a time in tenths of a second since a book began. It goes on while the machine sleeps,
// and never back.
type moment uint32

const tick = 100 * time.Millisecond

func momentOf(d time.Duration) moment { return moment(d / tick) }

// Book has the grants of all users.
type Book struct {
	began time.Time

	mu     sync.Mutex
	grants map[Key]*Grants
	groups map[groupKey][]*Grants
	recent list.List // of *Grants, most recently used first
	bytes  int
	users  map[string]*account
	floors map[any]floor // by cache
}

// Key says whose grants they are, and for what. resourceVersions of different caches and epochs
// cannot be compared.
type Key struct {
	Question [sha256.Size]byte // differs between identities of users, resources and selectors
	Common   [sha256.Size]byte // of all identities of a user, such as several tokens
	User     string            // whose share of the memory is used
	Cache    any
	Epoch    uint64
}

type groupKey struct {
	common [sha256.Size]byte
	cache  any
	epoch  uint64
}

func (k *Key) group() groupKey { return groupKey{k.Common, k.Cache, k.Epoch} }

// account is what a user takes of the bounds.
type account struct {
	bytes   int
	reviews *rate.Limiter
}

// floor is the resourceVersion below which dropped grants may have been used.
type floor struct{ epoch, rv uint64 }

// held is what the book knows of grants.
type held struct {
	key   Key
	owner *account
	bytes int
	used  time.Time
	place *list.Element
	floor uint64 // states below may have been shown with other sets

	list, watch *set
	changed     time.Time // when the sets became the present ones
	issued      []uint64  // resourceVersions at which they were shown first
	settled     uint64    // from here on, all replicas have shown them; 0 before
}

// NewBook returns an empty book.
func NewBook() *Book {
	return &Book{
		began: time.Now(), grants: map[Key]*Grants{}, groups: map[groupKey][]*Grants{},
		users: map[string]*account{}, floors: map[any]floor{},
	}
}

func (b *Book) now() moment {
	now := time.Now()
	return momentOf(max(now.Sub(b.began), now.Round(0).Sub(b.began.Round(0)))) // the monotonic clock stands still while the machine sleeps
}

// Of returns grants. The cache's newest resourceVersion must not be below any that was shown.
func (b *Book) Of(k Key, newest func() uint64) *Grants {
	b.mu.Lock()
	defer b.mu.Unlock()
	for oldest := b.recent.Back(); oldest != nil; oldest = b.recent.Back() {
		g := oldest.Value.(*Grants)
		if time.Since(g.held.used) < idle {
			break
		}
		b.dropLocked(g)
	}
	g := b.grants[k]
	if g == nil {
		g = &Grants{book: b, turn: make(chan struct{}, 1), newest: newest}
		g.list, g.watch = side{verb: "list", verdicts: map[string]verdict{}}, side{verb: "watch", verdicts: map[string]verdict{}}
		u := b.users[k.User]
		if u == nil {
			u = &account{reviews: rate.NewLimiter(userRate, userBurst)}
			b.users[k.User] = u
		}
		g.held = held{key: k, owner: u, place: b.recent.PushFront(g)}
		if f := b.floors[k.Cache]; f.epoch == k.Epoch {
			g.held.floor = f.rv
		}
		b.grants[k] = g
		b.groups[k.group()] = append(b.groups[k.group()], g)
		b.growLocked(g, grantsCost)
	}
	g.held.used = time.Now()
	b.recent.MoveToFront(g.held.place)
	return g
}

// reviews reviews namespaces within the user's limits.
func (b *Book) reviews(ctx context.Context, g *Grants, names []string, review func(ctx context.Context, name string) error) error {
	all, during := errgroup.WithContext(ctx)
	all.SetLimit(parallel)
	for _, name := range names {
		all.Go(func() error {
			if err := g.held.owner.reviews.Wait(during); err != nil {
				return err
			}
			return review(during, name)
		})
	}
	return all.Wait()
}

// settled records what grants show now, and drops grants if there are too many. It reports whether
// a client at q.At has been shown the same, and whether these grants were dropped.
func (b *Book) settled(g *Grants, q *Query, ok bool) (known, full bool) {
	counts := max(q.AllowTTL, b.denyTTL(g, q.DenyTTL)+overdueMost) + settleWait
	b.mu.Lock()
	defer b.mu.Unlock()
	if !g.dropped.Load() {
		b.growLocked(g, grantsCost+(len(g.list.verdicts)+len(g.watch.verdicts))*verdictCost-g.held.bytes)
		b.shrinkLocked(g)
	}
	if full = g.dropped.Load(); full || !ok {
		return false, full
	}
	h := &g.held
	h.shows(g.list.now.Load(), g.watch.now.Load(), b.groups[h.key.group()])
	if h.settled == 0 && time.Since(h.changed) > counts+replicasLag {
		h.settled = g.above()
	}
	if !q.Past {
		if !slices.Contains(h.issued, q.At) {
			h.issued = append(h.issued[max(0, len(h.issued)-issuedMost+1):], q.At)
		}
		return true, false
	}
	known = q.At >= h.list.since.Load()
	return known && (slices.Contains(h.issued, q.At) || h.settled != 0 && q.At >= h.settled && !h.foreign(b.groups[h.key.group()])), false
}

// shows records the sets of grants. If another identity of the user has been shown the same, its
// past is this one's. If the sets replace others, identities with other sets than those are not
// settled any more: their clients may have been shown the replaced sets.
func (h *held) shows(list, watch *set, group []*Grants) {
	first := h.list == nil
	if h.list == list && (h.watch == watch || h.watch == nil) {
		h.watch = watch
		return
	}
	before, now := held{list: h.list, watch: h.watch}, time.Now()
	h.list, h.watch, h.changed, h.settled, h.issued = list, watch, now, 0, nil
	if !first {
		for _, other := range group {
			if o := &other.held; o.settled != 0 && o.differs(&before) {
				o.changed, o.settled = now, 0
			}
		}
		return
	}
	for _, other := range group {
		if o := &other.held; o != h && o.list != nil && o.list.same(list) {
			h.changed, h.settled, h.issued = o.changed, o.settled, slices.Clone(o.issued)
			list.since.Store(max(h.floor, o.list.since.Load()))
			return
		}
	}
}

// foreign reports whether another identity of the user has been shown something else.
func (h *held) foreign(group []*Grants) bool {
	return slices.ContainsFunc(group, func(other *Grants) bool { return other.held.differs(h) })
}

func (h *held) differs(from *held) bool {
	return h.list != nil && from.list != nil && !h.list.same(from.list) || h.watch != nil && from.watch != nil && !h.watch.same(from.watch)
}

// shrinkLocked drops grants while there are too many: of the user above its share, those that were
// not used recently, or else the grants at hand; above the bound of all, the oldest of the largest
// user.
func (b *Book) shrinkLocked(g *Grants) {
	for e := b.recent.Back(); e != nil && g.held.owner.bytes > userMost; {
		oldest := e.Value.(*Grants)
		e = e.Prev()
		if oldest.held.owner == g.held.owner && (oldest == g || time.Since(oldest.held.used) > recent) {
			b.dropLocked(oldest)
		}
	}
	for b.bytes > most {
		var largest *account
		for _, u := range b.users {
			if largest == nil || u.bytes > largest.bytes {
				largest = u
			}
		}
		e := b.recent.Back()
		for e.Value.(*Grants).held.owner != largest {
			e = e.Prev()
		}
		b.dropLocked(e.Value.(*Grants))
	}
}

func (b *Book) growLocked(g *Grants, by int) {
	g.held.bytes += by
	b.bytes += by
	if g.held.owner.bytes += by; g.held.owner.bytes == 0 {
		delete(b.users, g.held.key.User)
	}
}

// dropLocked forgets grants. Their open watches end, and new grants for the same begin above all
// that these have shown.
func (b *Book) dropLocked(g *Grants) {
	g.dropped.Store(true)
	k := g.held.key
	f := b.floors[k.Cache]
	above := g.above() // after Store, as in become
	switch {
	case above == 1: // the cache is gone
		delete(b.floors, k.Cache)
	case k.Epoch > f.epoch:
		b.floors[k.Cache] = floor{k.Epoch, above}
	case k.Epoch == f.epoch:
		b.floors[k.Cache] = floor{k.Epoch, max(f.rv, above)}
	}
	b.growLocked(g, -g.held.bytes)
	b.recent.Remove(g.held.place)
	delete(b.grants, k)
	group := slices.DeleteFunc(b.groups[k.group()], func(other *Grants) bool { return other == g })
	if b.groups[k.group()] = group; len(group) == 0 {
		delete(b.groups, k.group())
	}
	for _, other := range group {
		if o := &other.held; o.settled != 0 && o.differs(&g.held) {
			o.settled = max(o.settled, above)
		}
	}
}

// denyTTL returns the time for which a namespace stays denied. It is longer than the TTL if very
// many would be reviewed again and again.
func (b *Book) denyTTL(g *Grants, ttl time.Duration) time.Duration {
	b.mu.Lock()
	defer b.mu.Unlock()
	own := time.Duration(g.held.owner.bytes/verdictCost) * time.Second / deniedUserRate
	all := time.Duration(b.bytes/verdictCost) * time.Second / deniedRate
	return max(ttl, own, min(all, deniedStretch*ttl))
}

// Held returns the number of grants and their bytes.
func (b *Book) Held() (count, bytes int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return len(b.grants), b.bytes
}
