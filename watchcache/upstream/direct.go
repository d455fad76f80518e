package upstream

import (
	"fmt"
	"math/bits"
	"sync"
	"time"

	"golang.org/x/time/rate"

	"github.com/watchproxy/watchproxy/watchcache"
)

// This file lets upstream itself answer reads that it answers sooner than the cache can be shown to
// be up to date.

// errSooner says that upstream answers a read sooner.
var errSooner = fmt.Errorf("%w: upstream answers sooner", ErrNotFresh)

const (
	// sizes is how many sizes of reads are told apart, each of four times as many objects as the one
	// before.
	sizes = 12
	// guessBase and guessObject are how long upstream is taken to need for a read, and for each object
	// of it, of a size that it has not answered yet.
	guessBase, guessObject = 3 * time.Millisecond, 30 * time.Microsecond
	// compareSlack is by how much more, beside a fifth, the cache may take than upstream.
	compareSlack = time.Millisecond
	// earlyAfter is how long a read waits, beside twice the time that upstream takes for it, before it is
	// left to upstream. EarlyRate and earlyBurst bound how many are, of all resources together: when all
	// wait long, upstream has enough to do.
	earlyAfter            = 25 * time.Millisecond
	earlyRate, earlyBurst = 10, 4
	// exploreEvery is how often a run is begun that no reader waits for while reads are left to upstream.
	// That is put off by exploreRest times as long as the last took, up to exploreMost.
	exploreEvery = time.Second
	exploreRest  = 50
	exploreMost  = 30 * time.Second
)

// roads are how long the two ways to the most recent state take: to show that the cache is up to
// date, and to have upstream answer.
type roads struct {
	mu struct {
		sync.Mutex
		// helped is how long runs have taken lately that needed more than a probe: half of the last such
		// one and half of those before. Each that needed no more takes an eighth off.
		helped  time.Duration
		direct  [sizes]time.Duration // moving averages; 0 if nothing is known
		explore time.Time            // when the next run is due that no reader waits for
	}
}

func sizeOf(objects int) int { return min((bits.Len(uint(max(objects, 0)))+1)/2, sizes-1) }

// compare tells how long upstream takes for a read of so many objects, and whether it answers sooner.
func (r *roads) compare(objects int) (takes time.Duration, sooner bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	takes = r.mu.direct[sizeOf(objects)]
	if takes == 0 {
		takes = guessBase + guessObject*time.Duration(objects)
	}
	return takes, r.mu.helped > takes+takes/5+compareSlack
}

// answered notes how long upstream took for a read. If it failed, all others are the cache's again for
// a while.
func (r *roads) answered(objects int, took time.Duration, ok bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !ok {
		r.mu.helped = 0
		return
	}
	average := &r.mu.direct[sizeOf(objects)]
	if *average == 0 {
		*average = took
	}
	*average += (took - *average) / 4
}

// ran notes how long a run took for so many readers.
func (r *roads) ran(outcome string, took time.Duration, readers int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.mu.explore = time.Now().Add(min(max(exploreEvery, exploreRest*took), exploreMost))
	switch outcome {
	default:
		r.mu.helped = (r.mu.helped + took) / 2
	case "current", "stream", proved:
		r.mu.helped -= r.mu.helped / 8
		if readers == 0 { // it was to find that out
			r.mu.helped = 0
		}
	}
}

// due tells whether a run should begin that no reader waits for. It does so once.
func (r *roads) due() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := time.Now()
	if now.Before(r.mu.explore) {
		return false
	}
	r.mu.explore = now.Add(freshTimeout)
	return true
}

// leave tells whether a read is for upstream from the beginning, and else how long it should wait.
func (f *Feed) leave(objects int) (takes time.Duration, leave bool) {
	takes, sooner := f.roads.compare(objects)
	if era, _ := f.keeper.ledger.standing(f.owner); !sooner || !f.direct() || f.carries(era) {
		return takes, false
	}
	if f.roads.due() {
		_, _ = f.fresh.join(f, 0) // a feed that ends has no more use for it
	}
	f.keeper.want(false)
	return takes, true
}

// direct tells whether configuration allows it.
func (f *Feed) direct() bool { return f.keeper.feeds.options.Load().Direct }

// Takes is how long upstream takes for a read of so many objects.
func (f *Feed) Takes(objects int) time.Duration {
	takes, _ := f.roads.compare(objects)
	return takes
}

// Answered notes how long upstream took for a read of so many objects that was left to it. Not ok is
// one that it did not answer.
func (f *Feed) Answered(objects int, took time.Duration, ok bool) {
	f.roads.answered(objects, took, ok)
	f.metrics.spent("direct", took)
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

// recent returns a state that is not older than the resource's maxAge, if there is one. The next proof
// is begun before it is too late.
func (f *Feed) recent(now time.Time) (s watchcache.Snapshot, age time.Duration, ok bool) {
	most := f.options.Load().MaxAge
	if most <= 0 {
		return s, 0, false
	}
	f.fresh.mu.Lock()
	p := f.fresh.mu.proof
	next := f.fresh.mu.next
	f.fresh.mu.Unlock()
	age = now.Sub(p.at)
	if age > most/2 && age <= most && next == nil {
		_, _ = f.fresh.join(f, 0)
	}
	if age > most {
		return s, 0, false
	}
	s, err := f.notOlderThan(p.rv)
	return s, max(age, 1), err == nil
}

// joins tells whether a get of the most recent state costs upstream nothing, and is answered by the
// cache at once or nearly so: readers wait for the next probe anyway and the ledger proves what it
// asks, or the resource's maxAge allows an earlier proof.
func (f *Feed) joins() bool {
	if _, _, ok := f.recent(time.Now()); ok {
		return true
	}
	f.fresh.mu.Lock()
	gathered := f.fresh.mu.next != nil && f.fresh.mu.next.readers > 0
	f.fresh.mu.Unlock()
	if !gathered || f.probes.Limit() != rate.Inf && f.probes.Tokens() < 1 {
		return false
	}
	era, _ := f.keeper.ledger.standing(f.owner)
	return f.carries(era)
}
