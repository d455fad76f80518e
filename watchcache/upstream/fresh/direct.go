package fresh

import (
	"context"
	"math/bits"
	"sync"
	"time"

	"golang.org/x/time/rate"

	"github.com/watchproxy/watchproxy/watchcache"
)

// This file decides which reads upstream answers because it answers faster than the cache.
//
// Catching up can take longer than upstream's own answer, and cost upstream more: for example, a
// metadata list of 10,000 objects to answer a list of 170 of them. So a feed keeps a moving average
// of both times for each read size (see [roads]). While reads go to upstream, a run without readers
// checks each second whether the cache is still current. It lists metadata far less often.
//
// With a write to another resource every five seconds, as the apiserver itself makes, one read in
// seven goes to upstream. Without these runs it was three in four. A decision after the cheap part
// of each run did not work: with 200 writes a second to other resources, the probe alone takes as
// long as the list.

const (
	// sizes is the number of read sizes. Each size covers four times as many objects as the
	// previous one.
	sizes = 12
	// guessBase and guessObject estimate upstream's time for a read and for each of its objects.
	// They are used if upstream has answered no read of that size within figureLasts.
	guessBase, guessObject = 3 * time.Millisecond, 30 * time.Microsecond
	figureLasts            = time.Minute
	// The cache may take 20 % longer than upstream, plus compareSlack.
	compareSlack = time.Millisecond
	// A slow run counts only if another slow run preceded it by less than slowAgain. If writes to
	// other resources are further apart, few reads wait for slow runs.
	slowAgain = 2 * time.Second
	// EarlyAfter plus twice upstream's own time for a read is how long the read waits. Then it goes
	// to upstream. The time starts with upstream's answer to the probe.
	EarlyAfter = 25 * time.Millisecond
	// EarlyBurst is the number of such reads that may go to upstream together, and earlyRate the
	// number per second after that. All resources share these limits, because upstream is already
	// busy when all reads wait for long.
	EarlyBurst = 16
	earlyRate  = 10
	// ExploreEvery is the interval of runs without readers while reads go to upstream. Normally,
	// such a run only checks whether the cache is current.
	ExploreEvery = time.Second
	// ExploreMost is the longest time between two such runs that also help the cache to catch up.
	// After a run that helped, the next one may help after exploreRest times its duration.
	ExploreMost = 15 * time.Second
	exploreRest = 50
)

// roads compares the two ways to the most recent state: to prove that the cache is up to date, or
// to let upstream answer.
type roads struct {
	mu struct {
		sync.Mutex
		// helped is the duration of recent runs that needed more than a probe: a moving average in
		// which each value is the shorter of two successive such runs. Each run that needed only a
		// probe reduces it by an eighth.
		helped  time.Duration
		last    time.Duration // of the last such run
		lastAt  time.Time
		direct  [2][sizes]figure // without and with a field selector
		explore time.Time        // when the next run without readers is due
		help    time.Time        // until then, runs without readers only check
	}
}

// figure is a moving average.
type figure struct {
	takes time.Duration
	at    time.Time // when the last value was measured
}

func (r *roads) figureLocked(s watchcache.Scope) *figure {
	kind := 0
	if s.Fields {
		kind = 1
	}
	return &r.mu.direct[kind][sizeOf(s.Objects)]
}

func sizeOf(objects int) int { return min((bits.Len(uint(max(objects, 0)))+1)/2, sizes-1) }

// compare returns how long upstream takes for a read, and whether the cache takes longer. If
// helping is true, a run is in progress that helps the cache. compare then assumes that it still
// takes at least half of the previous such run's time.
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

// answered records how long upstream took for a read. If upstream failed, the cache answers all
// reads for a while.
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

// ran records how long a run took and how many readers shared it.
func (r *roads) ran(outcome string, took time.Duration, readers int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := time.Now()
	r.mu.explore = now.Add(ExploreEvery)
	switch outcome {
	case moved, "shared": // a shared run was not slow itself; it waited for a slow one
	case "failed":
		r.mu.help = now.Add(min(exploreRest*took, ExploreMost))
	case "current", "stream", proved, "list": // a list is no slower than the read itself
		r.mu.helped -= r.mu.helped / 8
		if readers == 0 { // such a run decides alone
			r.mu.helped = 0
		}
	default:
		r.mu.help = now.Add(min(exploreRest*took, ExploreMost))
		slow := time.Duration(0) // a first slow run does not count
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

// due tells whether a run without readers should begin, and whether it may help the cache. If due
// returns true, the caller must begin the run.
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

// Leaves tells whether a read should go to upstream because upstream answers it faster than the
// cache.
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

// direct tells whether the configuration allows upstream to answer reads.
func (f *Feed) direct() bool { return f.Options.Load().Direct }

// Takes returns how long upstream takes for a read, or 0 if it has answered no similar read
// recently.
func (f *Feed) Takes(s watchcache.Scope) time.Duration {
	f.roads.mu.Lock()
	defer f.roads.mu.Unlock()
	if figure := f.roads.figureLocked(s); time.Since(figure.at) < figureLasts {
		return figure.takes
	}
	return 0
}

// Answered records how long upstream took for a read that went there. ok is false if upstream
// refused or failed.
func (f *Feed) Answered(s watchcache.Scope, took time.Duration, ok bool) {
	f.roads.answered(s, took, ok)
	if ok {
		f.keeper.metrics.freshRead("direct", took)
		f.Metrics.Spent("direct", took)
	}
}

// proof says that the cache at rv was up to date at the time at.
type proof struct {
	at time.Time
	rv uint64
}

// note records a proof.
func (s *freshness) note(p proof) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if p.at.After(s.mu.proof.at) {
		s.mu.proof = p
	}
}

// Recent returns a state within the resource's maxAge and the maximum age of that state, if there
// is one. It starts the next proof before this one expires.
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

// ahead begins a run without readers unless one is in flight. Without help, the run only checks
// whether the cache is current.
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

// Joins tells whether the cache can answer a get of the most recent state soon and without an
// upstream request. One case is an earlier proof within the resource's maxAge. The other case needs
// three things: readers already wait for the next probe, the probe is due soon, and the ledger may
// prove the cache current.
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

// JoinMost bounds the duration of a probe and the time until the next one. If either is longer, a
// get does not wait for the probe.
const JoinMost = 2 * time.Millisecond
