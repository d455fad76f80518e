package grants

import (
	"context"
	"crypto/sha256"
	"errors"
	"iter"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/time/rate"

	"github.com/watchproxy/watchproxy/proxy/access"
)

const (
	// knownMost limits the decisions of open eras. No user has more than half of those that the
	// others leave. A decision takes about 130 bytes.
	knownMost = 1_000_000
	// eraCost is the memory of an era and its goroutines, in decisions.
	eraCost = 64
	// lookRate is the number of decisions at which eras look again in a second.
	lookRate = 400
	// parallel limits the concurrent reviews of one read, and of the questions of one era.
	parallel = 8
)

var (
	// ErrUnreviewed says that not all namespaces could be reviewed.
	ErrUnreviewed = errors.New("namespaces cannot be reviewed")
	// ErrTooMany says that there would be too many decisions.
	ErrTooMany = errors.New(
		"open watches concern too many namespaces: watch fewer collections, or single namespaces",
	)
	// ErrChanged says that a list or a watch has shown other namespaces than the user may read now.
	ErrChanged = errors.New("the namespaces that the user may read have changed since then")
)

// Reviewer asks about the namespaces of a collection, on behalf of a user.
type Reviewer interface {
	// Review asks whether the user may read a namespace. The namespace "" stands for all of them.
	Review(ctx context.Context, namespace string) (Answer, error)
	// Namespaces walks the namespaces that have objects now.
	Namespaces() iter.Seq[string]
	// DenyTTL returns the time for which denials count.
	DenyTTL() time.Duration
}

// Answer is the decision on a namespace.
type Answer struct {
	Allowed bool
	Until   time.Time // it counts
}

// counts reports whether the decision need not be asked for again.
func (a Answer) counts() bool { return !access.Ended(a.Until, time.Now()) }

// Key says whose decisions an era has, and on what. Eras of different caches share nothing.
type Key struct {
	Question [sha256.Size]byte // differs between identities of users, resources and selectors
	User     string            // whose share of the decisions is used
	Cache    any
}

// Eras has the eras with open watches.
type Eras struct {
	looks *rate.Limiter
	mu    struct {
		sync.Mutex
		open  map[Key]*era
		known int // decisions of all eras
		users map[string]int
	}
}

// NewEras returns Eras without watches.
func NewEras() *Eras {
	s := &Eras{looks: rate.NewLimiter(lookRate, lookRate)}
	s.mu.open, s.mu.users = map[Key]*era{}, map[string]int{}
	return s
}

// Open opens a watch that begins with a state in which some namespaces have objects. The caller
// must close it. If decisions change meanwhile, Open decides again.
func (s *Eras) Open(ctx context.Context, k Key, r Reviewer, names []string) (*Watch, error) {
	for {
		w, err := s.join(k, r)
		if err != nil {
			return nil, err
		}
		err = w.era.open(ctx, names)
		if err == nil && !w.Over() {
			w.names, w.until = w.era.allowed(names)
			return w, nil
		}
		w.Close()
		if err == nil {
			err = ctx.Err()
		}
		if err != nil {
			return nil, err
		}
	}
}

// join adds a watch to the open era, or to a new one.
func (s *Eras) join(k Key, r Reviewer) (*Watch, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	e := s.mu.open[k]
	if e == nil || e.over.Load() {
		if !s.fitsLocked(k.User, eraCost) {
			return nil, ErrTooMany
		}
		e = begin(s, k, r)
		s.mu.open[k] = e
		s.countLocked(e, eraCost)
	}
	w := &Watch{era: e}
	e.watches[w] = struct{}{}
	return w, nil
}

func (s *Eras) fits(e *era, further int) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.fitsLocked(e.key.User, further)
}

func (s *Eras) fitsLocked(user string, further int) bool {
	its := s.mu.users[user]
	return its+further <= (knownMost-s.mu.known+its)/2
}

// count counts one further decision of an era, unless there is no room for it.
func (s *Eras) count(e *era) (fits bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if e.over.Load() {
		return true
	}
	if fits = s.fitsLocked(e.key.User, 1); fits {
		s.countLocked(e, 1)
	}
	return fits
}

func (s *Eras) countLocked(e *era, further int) {
	e.counted += further
	s.mu.known += further
	if s.mu.users[e.key.User] += further; s.mu.users[e.key.User] == 0 {
		delete(s.mu.users, e.key.User)
	}
}

// each calls ask for all names, some at a time, until it fails.
func each(ctx context.Context, names []string, ask func(ctx context.Context, i int) error) error {
	all, during := errgroup.WithContext(ctx)
	for first := range min(parallel, len(names)) {
		all.Go(func() (err error) {
			for i := first; i < len(names) && err == nil; i += parallel {
				err = ask(during, i)
			}
			return err
		})
	}
	return all.Wait()
}
