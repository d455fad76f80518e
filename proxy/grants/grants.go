package grants

import (
	"context"
	"iter"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
)

const (
	// parallel is the number of reviews that one user's read has upstream at a time.
	parallel = 8
	// deniedRate limits the reviews of namespaces that were denied, for all users, per second. If
	// there are many, they stay denied for longer than their TTL.
	deniedRate = 200
)

// Query is a question about the namespaces that a user may read.
type Query struct {
	// Watch asks for a watch. Otherwise the user wants a list.
	Watch bool
	// Review asks upstream whether the user may do verb in a namespace, and for how long the answer
	// counts. The namespace "" stands for all of them.
	Review func(ctx context.Context, verb, namespace string) (allowed bool, ttl time.Duration, err error)
	// Namespaces are the namespaces that have objects.
	Namespaces func() iter.Seq[string]
	// At is the resourceVersion of the state that the client is shown. If no grants are known yet,
	// their sets begin there.
	At uint64
	// Ahead is the time until the next question. Decisions that end before are made again.
	Ahead time.Duration
}

// Seen are the namespaces that a user may see.
type Seen struct {
	All        bool     // all namespaces
	Namespaces []string // sorted; they need not have objects
	Since      uint64   // see the package doc
	of         *Grants
	list       *set
	watch      *set // nil for a list
}

// Changed reports whether there is a newer set, which ends a watch. So does one of lists: the client
// may have listed.
func (s *Seen) Changed() bool {
	return s.of.dropped.Load() || s.of.list.now.Load() != s.list || s.watch != nil && s.of.watch.now.Load() != s.watch
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

// side are the decisions on one verb.
type side struct {
	verb     string
	verdicts map[string]verdict
	now      atomic.Pointer[set]
}

type verdict struct {
	allowed bool
	until   time.Time
}

// over reports whether a verdict has ended, by the monotonic or by the wall clock. The monotonic
// clock stands still while the machine sleeps.
func (v verdict) over(now time.Time) bool {
	return !now.Before(v.until) || !now.Round(0).Before(v.until.Round(0))
}

// set never changes after its turn.
type set struct {
	all   bool
	names []string
	since uint64
}

// Settle returns the namespaces that the user may see. It reviews those whose decisions are missing or
// have ended. After an error, the decisions already made count, but nothing may be shown.
func (g *Grants) Settle(ctx context.Context, q Query) (seen Seen, err error) {
	select {
	case g.turn <- struct{}{}:
		defer func() { <-g.turn }()
	case <-ctx.Done():
		return seen, ctx.Err()
	}
	defer func() { g.book.used(g, len(g.list.verdicts)+len(g.watch.verdicts)) }()
	list, err := g.list.settle(ctx, g, &q, nil)
	if err != nil {
		return seen, err
	}
	if !q.Watch {
		return Seen{list.all, list.names, list.since, g, list, nil}, nil
	}
	watch, err := g.watch.settle(ctx, g, &q, list)
	if err != nil {
		return seen, err
	}
	return Seen{watch.all, watch.names, max(list.since, watch.since), g, list, watch}, nil
}

// settle decides on the namespaces within a set; nil stands for all.
func (s *side) settle(ctx context.Context, g *Grants, q *Query, within *set) (*set, error) {
	first := max(q.At, g.held.floor)
	if within != nil {
		first = 0 // a client's state comes from a list, or has the same set
	}
	var names []string
	if within == nil || within.all {
		all, _, err := q.Review(ctx, s.verb, "")
		if err != nil {
			return nil, err
		}
		if all {
			return s.become(&set{all: true}, first, g.newest), nil
		}
		names = slices.Sorted(q.Namespaces())
	} else {
		names = within.names
	}
	if was := s.now.Load(); was != nil && within == nil {
		names = withShown(names, was.names)
	}
	err := s.decide(ctx, g, q, names)
	if was := s.now.Load(); err != nil && was == nil {
		return nil, err
	} else if err != nil {
		names = was.names // of these, some may have been denied before the error
	}
	allowed := make([]string, 0, 8)
	for _, name := range names {
		if s.verdicts[name].allowed {
			allowed = append(allowed, name)
		}
	}
	return s.become(&set{names: allowed}, first, g.newest), err
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

// become makes a set the present one, if it differs. Nothing older was shown from its Since on.
func (s *side) become(next *set, first uint64, newest func() uint64) *set {
	was := s.now.Load()
	switch {
	case was == nil:
		next.since = first
		s.now.Store(next)
	case was.all == next.all && slices.Equal(was.names, next.names):
		return was
	default:
		s.now.Store(next)
		next.since = newest() + 1 // after Store: see the package doc
	}
	return next
}

// decide makes the decisions that are missing or end too soon.
func (s *side) decide(ctx context.Context, g *Grants, q *Query, names []string) error {
	now := time.Now()
	var due []string
	for _, name := range names {
		if v, ok := s.verdicts[name]; !ok || v.over(now.Add(q.Ahead)) {
			due = append(due, name)
		}
	}
	defer s.forget(names)
	if len(due) == 0 {
		return nil
	}
	var mu sync.Mutex
	denied := g.book.deniedTTL()
	reviews, during := errgroup.WithContext(ctx)
	reviews.SetLimit(parallel)
	for _, name := range due {
		reviews.Go(func() error {
			if err := during.Err(); err != nil {
				return err
			}
			allowed, ttl, err := q.Review(during, s.verb, name)
			if err != nil {
				return err
			}
			if !allowed {
				ttl = max(ttl, denied)
			}
			mu.Lock()
			defer mu.Unlock()
			s.verdicts[name] = verdict{allowed, now.Add(ttl)}
			return nil
		})
	}
	return reviews.Wait()
}

// forget forgets the decisions on other namespaces than these.
func (s *side) forget(but []string) {
	if len(s.verdicts) <= len(but) {
		return
	}
	known := make(map[string]verdict, len(but))
	for _, name := range but {
		if v, ok := s.verdicts[name]; ok {
			known[name] = v
		}
	}
	s.verdicts = known
}
