package upstream

import (
	"context"
	"fmt"
	"time"

	"github.com/watchproxy/watchproxy/watchcache"
	"github.com/watchproxy/watchproxy/watchcache/upstream/client"
)

// This file asks upstream where it stands.

// askCost is the cost of the next question, in probes.
func (f *Feed) askCost() int {
	if stats := f.cache.Stats(); f.lists(stats) {
		return 1 + stats.Objects/objectsPerProbe
	}
	return 1
}

// carries tells whether the ledger may prove that the cache is up to date. In each era, upstream
// itself must first have shown the state, because the stream may still follow another history.
// It is never true for events: etcd deletes many of them at one revision, and the cache may show
// only some of those deletions.
func (f *Feed) carries(era uint64) bool {
	return !f.cache.Resource().NoWatchCache && f.fresh.era.Load() == era+1 && f.keeper.ledger.Has(f.owner)
}

// lists tells whether a list costs upstream no more than the requests that it would replace.
func (f *Feed) lists(s watchcache.Stats) bool {
	era, _ := f.keeper.ledger.Standing(f.owner)
	return !f.carries(era) && (isTiny(s) || isSmall(s) && f.fresh.quiet.Load())
}

// question is upstream's own statement of its resourceVersion.
type question struct {
	rv  uint64
	era uint64 // of the ledger, when it was asked
	// aside tells that another resource of the same etcd was asked. Upstream's cache of the
	// feed's own resource may lag behind the answer.
	aside bool
}

// shown tells whether upstream itself showed the state in a run with this outcome.
func (q question) shown(outcome string) bool {
	switch outcome {
	case "list", "metadata", "side-watch":
		return true
	case "current", "stream":
		return !q.aside
	}
	return false
}

// ask asks upstream for its revision. Where a list costs no more, it asks for the state instead:
// then the cache already shows it, and outcome is set. A revision below the cache's earlier one
// is no consistent read of the same etcd: etcd was restored.
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
