package grants

import (
	"context"
	"iter"
	"maps"
	"math"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

const (
	// allowLeast and denyLeast are the shortest times for which decisions count. An open watch renews
	// what it shows after half of the time, and must not end while it waits for the review.
	allowLeast = 5 * time.Second
	denyLeast  = time.Second
	// deniedWait limits the wait for reviews of namespaces that were denied before.
	deniedWait = 5 * time.Second
	// overdueMost is how long after its end a denial may count, because its review takes long.
	overdueMost = time.Minute
	// replicasLag is the time by which another replica may show older states.
	replicasLag = 2 * time.Minute
	// issuedMost is the number of resourceVersions of lists that are remembered.
	issuedMost = 16
)

// Query is a question about the namespaces that a user may read.
type Query struct {
	// Watch asks for a watch. Otherwise the user wants a list.
	Watch bool
	// Review asks upstream whether the user may do verb in a namespace. The namespace "" stands for
	// all of them.
	Review func(ctx context.Context, verb, namespace string) (allowed bool, err error)
	// Namespaces are the namespaces that have objects.
	Namespaces func() iter.Seq[string]
	// At is the resourceVersion of the state that the client is shown. With Past, it was shown
	// before, perhaps by another proxy.
	At   uint64
	Past bool
	// Early makes decisions again before they end.
	Early bool
	// AllowTTL and DenyTTL are the times for which decisions count.
	AllowTTL, DenyTTL time.Duration
}

// Seen are the namespaces that a user may see.
type Seen struct {
	All        bool     // all namespaces
	Namespaces []string // sorted; they need not have objects
	Since      uint64   // see the package doc
	// Known reports whether a client at At has been shown these namespaces.
	Known bool
	of    *Grants
	list  *set
	watch *set // nil for a list
}

// Changed reports whether the namespaces may no longer be shown: there is a newer set, or a
// decision has ended and was not renewed. It ends a watch. So does a newer set of lists, because
// the client may have listed.
func (s *Seen) Changed() bool {
	switch {
	case s.of.dropped.Load(), s.of.list.now.Load() != s.list, s.list.over(s.of.book):
		return true
	case s.watch == nil:
		return false
	}
	return s.of.watch.now.Load() != s.watch || s.watch.over(s.of.book)
}

// Grants are the namespaces in which one user may read one collection.
type Grants struct {
	book        *Book
	turn        chan struct{} // has room for one Settle
	list, watch side
	newest      func() uint64
	dropped     atomic.Bool
	held        held
}

// above returns a resourceVersion above all that have been shown.
func (g *Grants) above() uint64 { return g.newest() + 1 }

// side are the decisions on one verb.
type side struct {
	verb     string
	verdicts map[string]verdict
	now      atomic.Pointer[set]
}

type verdict struct {
	until   moment
	allowed bool
}

// set is what a user may see. Its namespaces never change.
type set struct {
	all   bool
	names []string
	since atomic.Uint64
	until atomic.Uint32 // the moment at which the first of its decisions ends
}

func (s *set) over(b *Book) bool { return b.now() >= moment(s.until.Load()) }

func (s *set) same(as *set) bool { return s.all == as.all && slices.Equal(s.names, as.names) }

// Settle returns the namespaces that the user may see. It reviews those whose decisions are missing
// or have ended. After an error, the decisions already made count, but nothing may be shown.
func (g *Grants) Settle(ctx context.Context, q Query) (seen Seen, err error) {
	select {
	case g.turn <- struct{}{}:
		defer func() { <-g.turn }()
	case <-ctx.Done():
		return seen, ctx.Err()
	}
	q.AllowTTL, q.DenyTTL = max(q.AllowTTL, allowLeast), max(q.DenyTTL, denyLeast)
	list, watch, err := g.settle(ctx, &q)
	known, full := g.book.settled(g, &q, err == nil)
	switch {
	case err != nil:
		return seen, err
	case full: // so others may be using newer grants
		return seen, errFull
	case !q.Watch:
		return Seen{list.all, list.names, list.since.Load(), known, g, list, nil}, nil
	}
	since := max(list.since.Load(), watch.since.Load())
	return Seen{watch.all, watch.names, since, known && q.At >= since, g, list, watch}, nil
}

func (g *Grants) settle(ctx context.Context, q *Query) (list, watch *set, err error) {
	list, err = g.list.settle(ctx, g, q, nil)
	if err == nil && q.Watch {
		watch, err = g.watch.settle(ctx, g, q, list)
	}
	return list, watch, err
}

// settle decides on the namespaces within a set; nil stands for all.
func (s *side) settle(ctx context.Context, g *Grants, q *Query, within *set) (*set, error) {
	was := s.now.Load()
	var names []string
	switch {
	case within == nil, within.all:
		all, err := q.Review(ctx, s.verb, "")
		if err != nil {
			return nil, err
		}
		if all {
			return s.become(&set{all: true}, g, q), nil
		}
		names = slices.Sorted(q.Namespaces())
	default:
		names = within.names
	}
	if was != nil && within == nil {
		names = withShown(names, was.names)
	}
	defer s.forget(names, g.book.now())
	needed, denied, denyTTL := s.due(g, q, names)
	err := s.review(ctx, g, q, denyTTL, needed)
	if err != nil && was == nil {
		return nil, err
	} else if err != nil {
		return s.become(s.allowed(was.names), g, q), err // some may have been denied before the error
	}
	now := s.become(s.allowed(names), g, q) // before the next wait, because of what has been denied
	if len(denied) == 0 {
		return now, nil
	}
	// To wait for namespaces that were denied before is worth little: they stay denied.
	patient, cancel := context.WithTimeout(ctx, deniedWait)
	defer cancel()
	_ = s.review(patient, g, q, denyTTL, denied)
	return s.become(s.allowed(names), g, q), ctx.Err()
}

// allowed returns the set of those namespaces that are allowed.
func (s *side) allowed(names []string) *set {
	allowed := make([]string, 0, 8)
	for _, name := range names {
		if s.verdicts[name].allowed {
			allowed = append(allowed, name)
		}
	}
	return &set{names: allowed}
}

// withShown adds namespaces that are shown, but have no objects now.
func withShown(names, shown []string) []string {
	n := len(names)
	for _, name := range shown {
		if _, found := slices.BinarySearch(names[:n], name); !found {
			names = append(names, name)
		}
	}
	if len(names) > n {
		slices.Sort(names)
	}
	return names
}

// become makes a set the present one, if it differs. Nothing older was shown from its since on.
func (s *side) become(next *set, g *Grants, q *Query) *set {
	was := s.now.Load()
	if was != nil && was.same(next) {
		s.lasts(was)
		return was
	}
	s.lasts(next)
	s.now.Store(next)
	switch {
	case was != nil:
		next.since.Store(g.above()) // after now.Store: see the package doc
	case s == &g.list:
		next.since.Store(max(q.At, g.held.floor))
	} // a first set of watches begins with the list's
	return next
}

// lasts records when the first decision of a set ends.
func (s *side) lasts(of *set) {
	until := moment(math.MaxUint32)
	for _, name := range of.names {
		until = min(until, s.verdicts[name].until)
	}
	of.until.Store(uint32(until))
}

// due returns the namespaces whose decisions are missing or have ended. It returns the denied ones
// apart, the oldest decision first, unless they are overdue: another proxy relies on their end. They
// stay denied for denyTTL if they are denied again.
func (s *side) due(g *Grants, q *Query, names []string) (needed, denied []string, denyTTL time.Duration) {
	const half, last = 2, 4 // early renewals: after half of the time that allows, in the last quarter of that which denies
	now := g.book.now()
	denyTTL = g.book.denyTTL(g, q.DenyTTL)
	for _, name := range names {
		switch v, ok := s.verdicts[name]; {
		case !ok, v.allowed && v.due(now, q, q.AllowTTL/half), now >= v.until+momentOf(overdueMost):
			needed = append(needed, name)
		case !v.allowed && v.due(now, q, denyTTL/last):
			denied = append(denied, name)
		}
	}
	slices.SortStableFunc(denied, func(a, b string) int { return int(s.verdicts[a].until) - int(s.verdicts[b].until) })
	return needed, denied, denyTTL
}

func (v verdict) due(now moment, q *Query, early time.Duration) bool {
	if q.Early {
		now += momentOf(early)
	}
	return now >= v.until
}

// review reviews namespaces.
func (s *side) review(ctx context.Context, g *Grants, q *Query, denyTTL time.Duration, names []string) error {
	var mu sync.Mutex
	return g.book.reviews(ctx, g, names, func(ctx context.Context, name string) error {
		now := g.book.now()
		allowed, err := q.Review(ctx, s.verb, name)
		if err != nil {
			return err
		}
		v := verdict{now + momentOf(denyTTL), false}
		if allowed {
			v = verdict{now + momentOf(q.AllowTTL), true}
		}
		mu.Lock()
		defer mu.Unlock()
		s.verdicts[name] = v
		return nil
	})
}

// forget forgets the decisions on other namespaces, once they have ended: reads of several states
// take turns.
func (s *side) forget(but []string, now moment) {
	if len(s.verdicts) <= len(but) {
		return
	}
	maps.DeleteFunc(s.verdicts, func(name string, v verdict) bool {
		_, named := slices.BinarySearch(but, name)
		return !named && now >= v.until
	})
}
