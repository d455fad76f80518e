package fresh

import (
	"context"
	"math/bits"
	"sync"
	"time"

	"golang.org/x/time/rate"

	"github.com/watchproxy/watchproxy/watchcache"
)

// This file leaves reads to upstream when upstream answers sooner than the cache.
//
// Catching up can take longer than upstream's own answer, and cost upstream more: for example, a
// metadata list of 10,000 objects to answer a list of 170 of them. So a feed keeps a moving average
// of both times for each read size (see [roads]). While reads go to upstream, a run without readers
// checks each second whether anything has happened. It lists metadata far less often. With a
// foreign write every five seconds, as the apiserver itself makes, one read in seven goes to
// upstream. Without these runs, three in four did. A decision by the run's cost, after its cheap
// part, did not work: beside 200 foreign writes a second, the probe alone takes as long as the
// list.

const (
	// sizes is the number of read sizes. Each covers four times as many objects as the one before.
	sizes = 12
	// guessBase and guessObject estimate upstream's time for a read, and for each of its objects,
	// when upstream has answered no read of that size within figureLasts.
	guessBase, guessObject = 3 * time.Millisecond, 30 * time.Microsecond
	figureLasts            = time.Minute
	// The cache may take a fifth more than upstream, plus compareSlack.
	compareSlack = time.Millisecond
	// A slow run counts if another one preceded it by less than slowAgain. With foreign writes
	// further apart, few reads wait for such a run.
	slowAgain = 2 * time.Second
	// EarlyAfter is how long a read waits after upstream has answered the probe, beside twice
	// upstream's own time for the read. Then it goes to upstream.
	EarlyAfter = 25 * time.Millisecond
	// EarlyBurst is how many such reads may go to upstream at once, over all resources. earlyRate
	// is how many may go in each second. When all reads wait long, upstream has enough to do.
	EarlyBurst = 16
	earlyRate  = 10
	// ExploreEvery is the interval of runs without readers while reads go to upstream. Such a run
	// only checks whether anything has happened.
	ExploreEvery = time.Second
	// ExploreMost bounds the pause until such a run may help the cache. The pause is exploreRest
	// times the duration of the last run that helped.
	ExploreMost = 15 * time.Second
	exploreRest = 50
)

// roads times the two ways to the most recent state: show that the cache is up to
// date, or have upstream answer.
type roads struct {
	mu struct {
		sync.Mutex
		// helped is the duration of recent runs that needed more than a probe: a moving average of
		// the shorter of two such runs. Each run that needed only a probe takes an eighth off.
		helped  time.Duration
		last    time.Duration // of the last such run
		lastAt  time.Time
		direct  [2][sizes]figure // without and with a selection by fields
		explore time.Time        // when the next run without readers is due
		help    time.Time        // until then that run only checks
	}
}

// figure is a moving average.
type figure struct {
	takes time.Duration
	at    time.Time // of the last value
}

func (r *roads) figureLocked(s watchcache.Scope) *figure {
	kind := 0
	if s.Fields {
		kind = 1
	}
	return &r.mu.direct[kind][sizeOf(s.Objects)]
}

func sizeOf(objects int) int { return min((bits.Len(uint(max(objects, 0)))+1)/2, sizes-1) }

// compare tells how long upstream takes for a read, and whether it answers sooner than the cache.
// While a run helps the cache, compare assumes that half of the last such run's time remains.
func (r *roads) compare(s watchcache.Scope, helping bool) (takes time.Duration, sooner bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	takes = guessBase + guessObject*time.Duration(s.Objects)
	if f := r.figureLocked(s); time.Since(f.at) < figureLasts {
		takes = f.takes
	}
	helped := r.mu.helped
	if helping {
		helped = max(helped, r.mu.last/2)
	}
	return takes, helped > takes+takes/5+compareSlack
}

// answered notes how long upstream took for a read. After a failure the cache answers all reads
// for a while.
func (r *roads) answered(s watchcache.Scope, took time.Duration, ok bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !ok {
		r.mu.helped = 0
		return
	}
	f := r.figureLocked(s)
	if time.Since(f.at) >= figureLasts {
		f.takes = took
	}
	f.takes += (took - f.takes) / 4
	f.at = time.Now()
}

// ran notes how long a run took, and how many readers shared it.
func (r *roads) ran(outcome string, took time.Duration, readers int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := time.Now()
	r.mu.explore = now.Add(ExploreEvery)
	switch outcome {
	case moved, "shared": // a shared run was not slow itself; it waited for a slow one
	case "failed":
		r.mu.help = now.Add(min(exploreRest*took, ExploreMost))
	case "current", "stream", proved, "list": // a list costs no more than the read
		r.mu.helped -= r.mu.helped / 8
		if readers == 0 { // the run was meant to find that out
			r.mu.helped = 0
		}
	default:
		r.mu.help = now.Add(min(exploreRest*took, ExploreMost))
		slow := time.Duration(0) // unless it is the second
		if now.Sub(r.mu.lastAt) < slowAgain {
			slow = min(took, r.mu.last)
		}
		r.mu.helped = (r.mu.helped + slow) / 2
		if readers == 0 {
			r.mu.helped = took
		}
		r.mu.last, r.mu.lastAt = took, now
	}
}

// due tells whether a run without readers should begin, and whether it may help. It says so once.
func (r *roads) due() (begin, help bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := time.Now()
	if now.Before(r.mu.explore) {
		return false, false
	}
	r.mu.explore = now.Add(freshTimeout)
	return true, !now.Before(r.mu.help)
}

// Leaves tells whether upstream answers a read sooner than the cache.
func (f *Feed) Leaves(s watchcache.Scope) bool {
	if !f.direct() {
		return false
	}
	_, sooner := f.roads.compare(s, len(f.fresh.helping) > 0)
	if era, _ := f.Ledger.Standing(f.Owner); !sooner || f.Carries(era) {
		return false
	}
	f.fresh.read.Store(watchcache.Moment(time.Now()))
	if begin, help := f.roads.due(); begin {
		f.fresh.ahead(f, help)
	}
	f.keeper.noteReader(false)
	return true
}

// direct tells whether the configuration lets upstream answer reads.
func (f *Feed) direct() bool { return f.Options.Load().Direct }

// Takes is how long upstream takes for a read; 0 if it has answered no similar read lately.
func (f *Feed) Takes(s watchcache.Scope) time.Duration {
	f.roads.mu.Lock()
	defer f.roads.mu.Unlock()
	if figure := f.roads.figureLocked(s); time.Since(figure.at) < figureLasts {
		return figure.takes
	}
	return 0
}

// Answered notes how long upstream took for a read that was left to it. ok is false if upstream
// refused or failed.
func (f *Feed) Answered(s watchcache.Scope, took time.Duration, ok bool) {
	f.roads.answered(s, took, ok)
	if ok {
		f.keeper.metrics.freshRead("direct", took)
		f.Metrics.Spent("direct", took)
	}
}

// proof says that the cache at rv was shown to be up to date as of at.
type proof struct {
	at time.Time
	rv uint64
}

// note notes a proof.
func (s *freshness) note(p proof) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if p.at.After(s.mu.proof.at) {
		s.mu.proof = p
	}
}

// Recent returns a state that is not older than the resource's maxAge, and its possible age, if
// there is such a state. It starts the next proof before this one expires.
func (f *Feed) Recent() (s watchcache.Snapshot, age time.Duration, ok bool) {
	s, age, ok = f.recent()
	if ok {
		f.fresh.read.Store(watchcache.Moment(time.Now()))
		f.keeper.metrics.freshRead("max-age", 0)
		if age > f.options().MaxAge/2 {
			f.fresh.ahead(f, true)
		}
	}
	return s, age, ok
}

func (f *Feed) recent() (s watchcache.Snapshot, age time.Duration, ok bool) {
	most := f.options().MaxAge
	if most <= 0 {
		return s, 0, false
	}
	f.fresh.mu.Lock()
	p := f.fresh.mu.proof
	f.fresh.mu.Unlock()
	if age = time.Since(p.at); age > most {
		return s, 0, false
	}
	s, err := notOlderThan(f.Cache(), p.rv)
	return s, max(age, 1), err == nil
}

// ahead begins a run without readers unless one is in flight. Without help, it only checks.
func (s *freshness) ahead(f *Feed, help bool) {
	if !s.looking.CompareAndSwap(false, true) {
		return
	}
	f.Go(func(context.Context) {
		defer s.looking.Store(false)
		if r, err := s.join(f, 0, help); err == nil {
			<-r.done
		}
	})
}

// Joins tells whether the cache can answer a get of the most recent state quickly and at no cost to
// upstream. Either readers already wait for the next probe, the probe is due soon, and the ledger
// may prove the cache current. Or an earlier proof is within the resource's maxAge.
func (f *Feed) Joins(allowed func() bool) bool {
	if _, _, ok := f.recent(); ok {
		return true
	}
	f.fresh.mu.Lock()
	gathered := f.fresh.mu.next != nil && f.fresh.mu.next.readers > 0 && f.fresh.mu.asks < JoinMost && time.Until(f.fresh.mu.due) < JoinMost
	f.fresh.mu.Unlock()
	if !gathered || f.keeper.probes.Limit() != rate.Inf && f.keeper.probes.Tokens() < 1 {
		return false
	}
	era, _ := f.Ledger.Standing(f.Owner)
	return f.Carries(era) && allowed()
}

// JoinMost bounds a probe's duration and the time until the next probe. Above it, a get does not
// wait for that probe.
const JoinMost = 2 * time.Millisecond
