package upstream

import (
	"math/bits"
	"sync"
	"time"

	"golang.org/x/time/rate"

	"github.com/watchproxy/watchproxy/watchcache"
)

// This file lets upstream itself answer reads that it answers sooner than the cache can be shown to
// be up to date.

const (
	// sizes is how many sizes of reads are told apart, each of four times as many objects as the one
	// before.
	sizes = 12
	// guessBase and guessObject are how long upstream is taken to need for a read, and for each object
	// of it, of a size that it has not answered within figureLasts.
	guessBase, guessObject = 3 * time.Millisecond, 30 * time.Microsecond
	figureLasts            = time.Minute
	// compareSlack is by how much more, beside a fifth, the cache may take than upstream.
	compareSlack = time.Millisecond
	// slowAgain is how soon after a slow run another has to come, so that it is no exception. When writes elsewhere are
	// further apart than that, few reads wait for one.
	slowAgain = 2 * time.Second
	// earlyAfter is how long a read waits after upstream has answered the probe, beside twice the time that
	// upstream takes for it, before it is left to upstream. EarlyRate and earlyBurst bound how many are, of all
	// resources together: when all wait long, upstream has enough to do.
	earlyAfter            = 25 * time.Millisecond
	earlyRate, earlyBurst = 10, 16
	// exploreEvery is how often a run is begun that no reader waits for while reads are left to upstream. It
	// only looks whether anything has happened. To help the cache, should it need that, is put off by
	// exploreRest times as long as the last run took that did, up to exploreMost.
	exploreEvery = time.Second
	exploreRest  = 50
	exploreMost  = 15 * time.Second
)

// roads are how long the two ways to the most recent state take: to show that the cache is up to
// date, and to have upstream answer.
type roads struct {
	mu struct {
		sync.Mutex
		// helped is how long runs have taken lately that needed more than a probe: a moving average of
		// the shorter of two such runs. Each that needed no more takes an eighth off.
		helped  time.Duration
		last    time.Duration // of the last such run
		lastAt  time.Time
		direct  [2][sizes]figure // without and with a selection by fields
		explore time.Time        // when the next run is due that no reader waits for
		help    time.Time        // before when that only looks
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

// compare tells how long upstream takes for a read, and whether it answers sooner. While a run helps
// the cache, half of what the last such run took is taken to be still to come.
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

// answered notes how long upstream took for a read. If it failed, all others are the cache's again for
// a while.
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

// ran notes how long a run took for so many readers.
func (r *roads) ran(outcome string, took time.Duration, readers int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := time.Now()
	r.mu.explore = now.Add(exploreEvery)
	switch outcome {
	case moved, "shared": // the latter is not one more that was slow, it waited for one that was
	case "failed":
		r.mu.help = now.Add(min(exploreRest*took, exploreMost))
	case "current", "stream", proved, "list": // the last costs no more than what upstream would be asked for
		r.mu.helped -= r.mu.helped / 8
		if readers == 0 { // it was to find that out
			r.mu.helped = 0
		}
	default:
		r.mu.help = now.Add(min(exploreRest*took, exploreMost))
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

// due tells whether a run should begin that no reader waits for, and whether it may help. It does so once.
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
	if era, _ := f.keeper.ledger.Standing(f.owner); !sooner || f.carries(era) {
		return false
	}
	f.fresh.read.Store(watchcache.Moment(time.Now()))
	if begin, help := f.roads.due(); begin {
		f.fresh.ahead(f, help)
	}
	f.keeper.noteReader(false)
	return true
}

// direct tells whether configuration lets reads be left to upstream.
func (f *Feed) direct() bool { return f.keeper.feeds.options.Load().Direct }

// Takes is how long upstream takes for a read, 0 if it has not answered one like it lately.
func (f *Feed) Takes(s watchcache.Scope) time.Duration {
	f.roads.mu.Lock()
	defer f.roads.mu.Unlock()
	if figure := f.roads.figureLocked(s); time.Since(figure.at) < figureLasts {
		return figure.takes
	}
	return 0
}

// Answered notes how long upstream took for a read that was left to it. Not ok is one that it refused
// or failed to answer.
func (f *Feed) Answered(s watchcache.Scope, took time.Duration, ok bool) {
	f.roads.answered(s, took, ok)
	if ok {
		f.metrics.freshRead("direct", took)
		f.metrics.spent("direct", took)
	}
}

// proof is a moment as of which the cache was shown to be up to date once it had got to rv.
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

// Recent returns a state that is not older than the resource's maxAge, and how old it may be, if there
// is one. The next proof is begun before it is too late.
func (f *Feed) Recent() (s watchcache.Snapshot, age time.Duration, ok bool) {
	s, age, ok = f.recent()
	if ok {
		f.fresh.read.Store(watchcache.Moment(time.Now()))
		f.metrics.freshRead("max-age", 0)
		if age > f.options.Load().MaxAge/2 {
			f.fresh.ahead(f, true)
		}
	}
	return s, age, ok
}

func (f *Feed) recent() (s watchcache.Snapshot, age time.Duration, ok bool) {
	most := f.options.Load().MaxAge
	if most <= 0 {
		return s, 0, false
	}
	f.fresh.mu.Lock()
	p := f.fresh.mu.proof
	f.fresh.mu.Unlock()
	if age = time.Since(p.at); age > most {
		return s, 0, false
	}
	s, err := f.notOlderThan(p.rv)
	return s, max(age, 1), err == nil
}

// ahead begins a run that no reader waits for, unless one is under way. If it may not help, it only looks.
func (s *freshness) ahead(f *Feed, help bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.mu.ahead != nil {
		select {
		case <-s.mu.ahead.done:
		default:
			return
		}
	}
	s.mu.ahead, _ = s.joinLocked(f, 0, help) // a feed that ends has no more use for it
}

// joins tells whether a get of the most recent state costs upstream nothing, and is answered by the
// cache at once or nearly so: readers wait for the next probe anyway, which is soon, and the ledger
// proves what it asks; or the resource's maxAge allows an earlier proof.
func (f *Feed) joins(allowed func() bool) bool {
	if _, _, ok := f.recent(); ok {
		return true
	}
	f.fresh.mu.Lock()
	gathered := f.fresh.mu.next != nil && f.fresh.mu.next.readers > 0 && f.fresh.mu.asks < joinMost && time.Until(f.fresh.mu.due) < joinMost
	f.fresh.mu.Unlock()
	if !gathered || f.probes.Limit() != rate.Inf && f.probes.Tokens() < 1 {
		return false
	}
	era, _ := f.keeper.ledger.Standing(f.owner)
	return f.carries(era) && allowed()
}

// joinMost is how long a probe may take, and how soon the next has to come, for a get to wait for it.
const joinMost = 2 * time.Millisecond
