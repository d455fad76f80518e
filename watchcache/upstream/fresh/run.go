package fresh

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/watchproxy/watchproxy/watchcache"
	"github.com/watchproxy/watchproxy/watchcache/upstream/feed"
)

// This file asks upstream where it stands, and brings the cache there.

// askCost is the cost of the next question, in probes.
func (f *Feed) askCost() int {
	if stats := f.Cache().Stats(); f.lists(stats) {
		return 1 + stats.Objects/objectsPerProbe
	}
	return 1
}

// Carries tells whether the ledger may prove that the cache is up to date. In each era, upstream
// itself must first have shown the state, because the stream may still follow another history.
// It is never true for events: etcd deletes many of them at one revision, and the cache may show
// only some of those deletions.
func (f *Feed) Carries(era uint64) bool {
	return !f.Cache().Resource().NoWatchCache && f.fresh.era.Load() == era+1 && f.Ledger.Has(f.Owner)
}

// lists tells whether a list costs upstream no more than the requests that it would replace.
func (f *Feed) lists(s watchcache.Stats) bool {
	era, _ := f.Ledger.Standing(f.Owner)
	return !f.Carries(era) && (isTiny(s) || feed.IsSmall(s) && f.OthersWrite())
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
	defer func() { f.NoteAnswer(runs, began, err) }()
	ctx, cancel := context.WithTimeout(ctx, feed.AskTimeout)
	defer cancel()
	before := f.Cache().Stats()
	era, noted := f.Ledger.Standing(f.Owner)
	q.era = era
	if f.lists(before) {
		outcome = "list"
		q.rv, err = f.FastForward(ctx, 0)
	} else {
		if f.Carries(era) {
			q.rv, q.aside = f.keeper.askAside(ctx, max(before.Newest, noted))
		}
		if !q.aside {
			q.rv, err = f.probe(ctx)
		}
	}
	if before := max(before.Newest, noted); err == nil && q.rv < before {
		err = fmt.Errorf("%w: from %d to %d", feed.ErrWentBack, before, q.rv)
	}
	if errors.Is(err, feed.ErrWentBack) {
		f.Ledger.Forget()
		f.Interrupt(err)
	}
	return q, outcome, err
}

func (f *Feed) probe(ctx context.Context) (rv uint64, err error) {
	defer f.Metrics.Spend("probe")()
	return f.Probe(ctx)
}

// moved is the outcome of a run that only checked, and found that the cache needs help.
const moved = "moved"

var errMoved = errors.New("others have written since")

// reach waits until readers see a state at or above rv. If the stream does not bring it, reach may
// help.
func (f *Feed) reach(ctx context.Context, q *question, help bool) (outcome string, err error) {
	ctx, cancel := context.WithTimeout(ctx, freshTimeout)
	defer cancel()
	stats := f.Cache().Stats()
	if stats.Newest >= q.rv {
		return "current", nil
	}
	patience := largePatience
	if feed.IsSmall(stats) {
		patience = streamPatience
	}
	if outcome := f.settles(ctx, *q, patience); outcome != "" {
		return outcome, nil
	}
	if !help {
		return "", errMoved
	}
	select {
	case f.fresh.helping <- struct{}{}:
		defer func() { <-f.fresh.helping }()
	case <-ctx.Done():
		return "", ctx.Err()
	}
	if f.Reaches(ctx, q.rv, 0) {
		return "shared", nil // the run before brought it
	}
	if q.aside {
		// A probe of the resource itself makes upstream bring its own cache up to date.
		_ = f.keeper.probes.Wait(ctx)
		rv, err := f.probe(ctx)
		if err == nil && rv < q.rv {
			f.Ledger.Forget() // the two resources are not in the same etcd
		}
		if errors.Is(err, feed.ErrWentBack) {
			f.Ledger.Forget()
			f.Interrupt(err)
		}
		if err != nil {
			return "", err
		}
		q.rv, q.aside = rv, false
		if f.Reaches(ctx, q.rv, patience) {
			return "stream", nil
		}
	}
	return f.CatchUp(ctx, q.rv)
}

func isTiny(s watchcache.Stats) bool { return s.Objects <= TinyObjects && s.Bytes <= tinyBytes }

// proved is the outcome of a run that the ledger alone answered.
const proved = "ledger"

// settles waits until the ledger or the stream shows the state of q, and returns which one did.
func (f *Feed) settles(ctx context.Context, q question, patience time.Duration) (outcome string) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	stream := make(chan struct{})
	var waiting sync.WaitGroup
	defer waiting.Wait()
	defer cancel()
	for first := true; ; first = false {
		noted := f.Ledger.Wait()
		if f.proved(q) {
			return proved
		}
		if first {
			waiting.Go(func() {
				if _, err := f.Cache().WaitFresh(ctx, q.rv); err == nil {
					close(stream)
				}
			})
		}
		select {
		case <-noted:
		case <-stream:
			return "stream"
		case <-ctx.Done():
			return ""
		}
	}
}

// proved marks the newest state as current as of q, if the ledger proves that.
func (f *Feed) proved(q question) bool {
	_, epoch := f.Standing()
	newest := f.Cache().Stats().Newest
	if newest >= q.rv || !f.Carries(q.era) || !f.Ledger.Proves(q.era, f.Owner, newest, q.rv) {
		return false
	}
	carried := false
	err := f.Write(epoch, func() error {
		carried = f.Cache().Carry(newest, q.rv)
		return nil
	})
	return err == nil && carried
}
