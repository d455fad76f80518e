package fresh

import (
	"context"
	"math/bits"
	"sync"
	"time"

	"github.com/watchproxy/watchproxy/watchcache"
)

// This file decides which reads go to upstream because upstream is faster than the cache.
//
// Catching up can take longer than a read at upstream, and cost upstream more. For example, the
// cache may need a metadata list of 10,000 objects to answer a list of 170 of them. So a feed keeps
// moving averages of the two durations, for each read size (see [latencies]). While reads go to
// upstream, a run without readers checks every second whether the cache is still current. Much less
// often, such a run also helps the cache to catch up.
//
// A reader that comes every few seconds finds writes to other resources each time, and the ledger
// does not run for so few readers. If a run has to help the cache and upstream is faster, such
// readers go to upstream immediately. Without this rule, such a reader waited 155 ms for a page of
// 500 of 10,000 pods. The apiserver took 35 ms. If readers are frequent, the run then helps the
// cache without them.
//
// While another resource was written every five seconds, as the apiserver itself does, one read in
// seven went to upstream; without the runs that have no readers, three in four.

const (
	// sizes is the number of size classes for reads. Each class covers four times as many objects
	// as the previous class.
	sizes = 12
	// guessBase and guessObject estimate upstream's time for a read and for each of its objects.
	// The estimate is used if upstream has answered no read of the same size class within
	// figureLasts.
	guessBase, guessObject = 3 * time.Millisecond, 30 * time.Microsecond
	// guessHelp estimates a run's time for helping the cache, per object of the collection. The
	// estimate is used if no run has helped within figureLasts.
	guessHelp   = 10 * time.Microsecond
	figureLasts = time.Minute
	// The cache may take 20 % longer than upstream, plus compareSlack.
	compareSlack = time.Millisecond
	// A reader goes to upstream if a run's help takes 20 % longer than upstream, plus leaveSlack.
	// The run then helps without readers if the previous reader came within frequent.
	leaveSlack = 10 * time.Millisecond
	frequent   = time.Second
	// A slow run counts only if the previous slow run was less than slowAgain ago. If writes to
	// other resources are further apart, few reads wait for slow runs.
	slowAgain = 2 * time.Second
	// EarlyAfter is the wait, in addition to twice upstream's own time for a read, after which the
	// read goes to upstream. The wait starts when upstream has answered the probe.
	EarlyAfter = 25 * time.Millisecond
	// EarlyBurst is the number of such reads that may go to upstream at once. After that, earlyRate
	// is the number per second. All resources share these limits, because upstream is already busy
	// when all reads wait for long.
	EarlyBurst = 16
	earlyRate  = 10
	// ExploreEvery is the interval of runs without readers while reads go to upstream. Most of
	// these runs only check whether the cache is current.
	ExploreEvery = time.Second
	// ExploreMost limits the time, after a run that helped or failed, for which runs without
	// readers only check. This time is exploreRest times the duration of the run that helped or
	// failed.
	ExploreMost = 15 * time.Second
	exploreRest = 50
)

// latencies compares the two ways to serve the most recent state: from the cache, after a proof that
// it is up to date, or from upstream.
type latencies struct {
	mu struct {
		sync.Mutex
		// helped is the duration of recent slow runs: runs that needed more than a probe. It is a
		// moving average. Each value is the shorter duration of two successive slow runs. Each run
		// that needed only a probe reduces the average by an eighth.
		helped  time.Duration
		left    bool          // the readers of the last run went to upstream
		last    time.Duration // duration of the last slow run
		before  time.Duration // duration of the slow run before that
		lastAt  time.Time
		direct  [2][sizes]figure // without and with a field selector
		explore time.Time        // start of the next run without readers
		help    time.Time        // before this time, runs without readers only check
	}
}

// figure is a moving average of upstream's duration of a read.
type figure struct {
	takes time.Duration
	at    time.Time // when the last value was measured
}

func (r *latencies) figureLocked(s watchcache.Work) *figure {
	kind := 0
	if s.Fields {
		kind = 1
	}
	return &r.mu.direct[kind][sizeOf(s.Objects)]
}

func sizeOf(objects int) int { return min((bits.Len(uint(max(objects, 0)))+1)/2, sizes-1) }

// compare returns upstream's duration for a read, and whether the cache takes longer. If helping is
// true, a run is helping the cache to catch up. compare then assumes that this run takes at least
// half as long as the previous slow run.
func (r *latencies) compare(s watchcache.Work, helping bool) (takes time.Duration, sooner bool) {
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
	return takes, longer(helped, takes)
}

// longer reports whether the cache takes too long compared with upstream.
func longer(cache, upstream time.Duration) bool { return cache > upstream+upstream/5+compareSlack }

// helpTakes estimates the duration of a run that has to help the cache.
func (r *latencies) helpTakes(objects int) time.Duration {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.helpTakesLocked(objects)
}

func (r *latencies) helpTakesLocked(objects int) time.Duration {
	if time.Since(r.mu.lastAt) < figureLasts {
		return min(r.mu.last, max(r.mu.before, guessHelp*time.Duration(objects)))
	}
	return guessHelp * time.Duration(objects)
}

// left records that the readers of a run went to upstream because the run would have had to help.
// After two such runs in succession, further readers go to upstream immediately.
func (r *latencies) left(objects int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.mu.left {
		r.mu.helped = max(r.mu.helped, r.helpTakesLocked(objects))
	}
	r.mu.left = true
}

// answered records upstream's duration for a read. If upstream failed, the cache answers all reads
// for a while.
func (r *latencies) answered(s watchcache.Work, took time.Duration, ok bool) {
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

// ran records the duration of a run and the number of its readers.
func (r *latencies) ran(end *outcome, took time.Duration, readers int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := time.Now()
	r.mu.explore = now.Add(ExploreEvery)
	r.mu.left = r.mu.left && end == moved
	switch end.tells {
	case nothing:
	case isInVain:
		r.mu.help = now.Add(min(exploreRest*took, ExploreMost))
	case isQuick:
		r.mu.helped -= r.mu.helped / 8
		if readers == 0 { // the outcome of such a run alone determines helped
			r.mu.helped = 0
		}
	case isSlow:
		r.mu.help = now.Add(min(exploreRest*took, ExploreMost))
		slow := time.Duration(0) // a first slow run does not count
		if now.Sub(r.mu.lastAt) < slowAgain {
			slow = min(took, r.mu.last)
		}
		r.mu.helped = (r.mu.helped + slow) / 2
		if readers == 0 {
			r.mu.helped = took
		}
		r.mu.last, r.mu.before, r.mu.lastAt = took, r.mu.last, now
	}
}

// due reports whether a run without readers should begin now, and whether that run may help the
// cache. If begin is true, the caller must start the run.
func (r *latencies) due() (begin, help bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := time.Now()
	if now.Before(r.mu.explore) {
		return false, false
	}
	r.mu.explore = now.Add(freshTimeout)
	return true, !now.Before(r.mu.help)
}

// Leaves reports whether a read should go to upstream because upstream is faster than the cache.
func (f *Feed) Leaves(s watchcache.Work) bool {
	if !f.direct() {
		return false
	}
	_, sooner := f.latencies.compare(s, len(f.fresh.helping) > 0)
	if era, _ := f.Ledger.Position(f.Owner); !sooner || f.Carries(era) {
		return false
	}
	f.fresh.read.Store(watchcache.Moment(time.Now()))
	if begin, help := f.latencies.due(); begin {
		f.fresh.ahead(f, help)
	}
	f.keeper.noteReader(f.Owner, false)
	return true
}

// direct reports whether the configuration allows upstream to answer reads.
func (f *Feed) direct() bool { return f.Options.Load().Direct }

// Takes returns upstream's duration for a read, or 0 if upstream has answered no similar read
// recently.
func (f *Feed) Takes(s watchcache.Work) time.Duration {
	f.latencies.mu.Lock()
	defer f.latencies.mu.Unlock()
	if figure := f.latencies.figureLocked(s); time.Since(figure.at) < figureLasts {
		return figure.takes
	}
	return 0
}

// Answered records the duration of a read at upstream. ok is false if upstream refused or failed.
func (f *Feed) Answered(s watchcache.Work, took time.Duration, ok bool) {
	f.latencies.answered(s, took, ok)
	if ok {
		f.keeper.metrics.freshRead("direct", took)
		f.Metrics.Spent("direct", took)
	}
}

// proof means that the cache at rv was up to date at the time at.
type proof struct {
	at time.Time
	rv uint64
}

// age returns the time since the proof, by the monotonic or by the wall clock, whichever is longer.
// The monotonic clock stands still while the machine sleeps.
func (p proof) age() time.Duration {
	now := time.Now()
	return max(now.Sub(p.at), now.Round(0).Sub(p.at.Round(0)))
}

// note records a proof.
func (s *freshness) note(p proof) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if p.at.After(s.mu.proof.at) {
		s.mu.proof = p
	}
}

// Recent returns the cached state if it is younger than the resource's maxAge. age is the state's
// maximum age. Recent starts the next proof before the present proof expires.
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
	if age = p.age(); age > most {
		return s, 0, false
	}
	s, err := notOlderThan(f.Cache(), p.rv)
	return s, max(age, 1), err == nil
}

// ahead begins a run without readers unless such a run is in flight. If help is false, the run only
// checks whether the cache is current.
func (s *freshness) ahead(f *Feed, help bool) {
	if !s.looking.CompareAndSwap(false, true) {
		return
	}
	f.Go(func(context.Context) {
		defer s.looking.Store(false)
		if r, err := s.join(f, 0, wish{helps: help}); err == nil {
			<-r.done
		}
	})
}

// AnswersGets reports whether the cache may answer a get of the most recent state: there is a proof
// within the resource's maxAge. If a webhook converts the objects, even a current cache may have old
// conversions.
func (f *Feed) AnswersGets() bool {
	_, _, ok := f.recent()
	return ok && !f.Cache().Resource().Converted
}
