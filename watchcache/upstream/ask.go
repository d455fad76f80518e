package upstream

import (
	"context"
	"fmt"
	"time"

	"github.com/watchproxy/watchproxy/watchcache"
	"github.com/watchproxy/watchproxy/watchcache/upstream/client"
)

// This file asks upstream where it stands.

// askCost is what the next question costs, in probes.
func (f *Feed) askCost() int {
	if stats := f.cache.Stats(); f.lists(stats) {
		return 1 + stats.Objects/objectsPerProbe
	}
	return 1
}

// carries tells whether the ledger may prove that the cache is up to date. In each era that has to be
// seen by other means first: the stream may still be of another history. Events never: etcd deletes
// many of them at one revision, and the cache may show a part of that.
func (f *Feed) carries(era uint64) bool {
	return !f.cache.Resource().NoWatchCache && f.fresh.era.Load() == era+1 && f.keeper.ledger.Has(f.owner)
}

// lists tells whether a list costs upstream no more than what else it would be asked.
func (f *Feed) lists(s watchcache.Stats) bool {
	era, _ := f.keeper.ledger.Standing(f.owner)
	return !f.carries(era) && (isTiny(s) || isSmall(s) && f.fresh.quiet.Load())
}

// question is where upstream stands, by its own word.
type question struct {
	rv  uint64
	era uint64 // of the ledger, when it was asked
	// aside tells that it was asked of another resource of the same etcd. Upstream's cache of the
	// feed's own resource need not be there yet.
	aside bool
}

// shown tells whether a run with such an outcome was shown the state by upstream itself.
func (q question) shown(outcome string) bool {
	switch outcome {
	case "list", "metadata", "side-watch":
		return true
	case "current", "stream":
		return !q.aside
	}
	return false
}

// ask asks upstream for its revision, and for the state where that costs no more:
// then readers see it already, and there is an outcome. A revision below what the
// cache had before is no consistent read of the same etcd: it was restored.
func (f *Feed) ask(ctx context.Context) (q question, outcome string, err error) {
	began, runs := time.Now(), ctx
	defer func() { f.answered(runs, began, err) }()
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	before := f.cache.Stats()
	era, noted := f.keeper.ledger.Standing(f.owner)
	q.era = era
	if f.lists(before) {
		outcome = "list"
		q.rv, err = f.fastForward(ctx, 0)
	} else {
		if f.carries(era) {
			q.rv, q.aside = f.keeper.askAside(ctx, max(before.Newest, noted))
		}
		if !q.aside {
			var p client.Probe
			p, err = f.probe(ctx)
			q.rv = p.RV
		}
	}
	if before := max(before.Newest, noted); err == nil && q.rv < before {
		err = fmt.Errorf("%w: from %d to %d", errWentBack, before, q.rv)
		f.keeper.ledger.Forget()
		f.interrupt(err)
	}
	return q, outcome, err
}

func (f *Feed) probe(ctx context.Context) (client.Probe, error) {
	defer f.metrics.spend("probe")()
	return f.client.Probe(ctx, f.cache.Resource())
}
