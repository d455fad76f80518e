package fresh

import (
	"context"
	"sync"
	"time"

	"github.com/watchproxy/watchproxy/watchcache"
)

// proof means that the cache at rv was up to date at the time at, in the given era of the ledger.
type proof struct {
	at  time.Time
	rv  uint64
	era uint64
}

// age returns the time since the proof, by the monotonic or by the wall clock, whichever is longer.
// The monotonic clock stands still while the machine sleeps.
func (p proof) age() time.Duration {
	now := time.Now()
	return max(now.Sub(p.at), now.Round(0).Sub(p.at.Round(0)))
}

// proofs has the latest proof; zero if there is none.
type proofs struct {
	mu     sync.Mutex
	latest proof
}

func (l *proofs) note(p proof) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !p.at.Before(l.latest.at) {
		l.latest = p
	}
}

func (l *proofs) last() proof {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.latest
}

// Recent returns the cached state if it is younger than the resource's maxAge. age is the state's
// maximum age. Recent starts the next proof before the present proof expires.
func (f *Feed) Recent() (s watchcache.Snapshot, age time.Duration, ok bool) {
	s, age, ok = f.recent()
	if !ok {
		return s, 0, false
	}
	f.read.Store(watchcache.Moment(time.Now()))
	f.Keeper.metrics.freshRead("max-age", 0)
	if age > f.options().MaxAge/2 && f.ahead.CompareAndSwap(false, true) {
		f.Feed.Go(func(ctx context.Context) {
			defer f.ahead.Store(false)
			_, _ = f.share(ctx, true, 0)
		})
	}
	return s, age, true
}

func (f *Feed) recent() (s watchcache.Snapshot, age time.Duration, ok bool) {
	most := f.options().MaxAge
	if most <= 0 {
		return s, 0, false
	}
	p := f.proofs.last()
	if age = p.age(); age > most {
		return s, 0, false
	}
	s, err := notOlderThan(f.Cache(), p.rv)
	return s, max(age, 1), err == nil
}

// AnswersGets reports whether the cache may answer a get of the most recent state: there is a proof
// within the resource's maxAge. If a webhook converts the objects, even a current cache may have
// old conversions.
func (f *Feed) AnswersGets() bool {
	_, _, ok := f.recent()
	return ok && !f.Cache().Resource().Converted
}
