package fresh

import (
	"context"
	"time"

	"github.com/watchproxy/watchproxy/watchcache"
	"github.com/watchproxy/watchproxy/watchcache/upstream/client"
)

// closeHoles begins runs for caches that the ledger cannot prove current: caches before a hole and,
// in a new era, all caches. So readers do not have to wait for these runs.
func (k *Keeper) closeHoles(ctx context.Context) {
	for client.Sleep(ctx, holeLooks) {
		for _, f := range k.feeds() {
			at, unproved := k.unproved(f)
			if !unproved || !f.fresh.busy() || watchcache.Moment(time.Now()) < f.fresh.rested.Load() {
				continue
			}
			if f.fresh.closing.CompareAndSwap(false, true) {
				k.running.Go(func() {
					defer f.fresh.closing.Store(false)
					client.Sleep(ctx, holeLooks) // the missing revision may still arrive
					if now, unproved := k.unproved(f); unproved && now == at {
						began := time.Now()
						_, _ = f.shareRun(ctx, true)
						f.fresh.rested.Store(watchcache.Moment(time.Now().Add(holeRest * time.Since(began))))
					}
				})
			}
		}
	}
}

// unproved reports whether the ledger covers a feed but cannot prove its cache current. at is the
// revision before the hole. It is 0 if upstream itself has not shown the cache's state in this era
// yet.
func (k *Keeper) unproved(f *Feed) (at uint64, unproved bool) {
	if f.Cache().Resource().NoWatchCache || !k.Ledger.Has(f.Owner) {
		return 0, false
	}
	era, highest := k.Ledger.Position(f.Owner)
	if !f.Carries(era) {
		return 0, true
	}
	at = f.Cache().Stats().Newest
	return at, at < highest && !k.Ledger.Proves(era, f.Owner, at, highest)
}
