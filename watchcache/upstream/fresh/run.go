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

// This file reads upstream's revision and brings the cache to that revision.

// askCost is the cost of the next request in the probe budget.
func (f *Feed) askCost() int {
	if stats := f.Cache().Stats(); f.lists(stats) {
		return 1 + stats.Objects/objectsPerProbe
	}
	return 1
}

// Carries reports whether the ledger may prove the cache current. At the beginning of each era, it
// may not, because the stream may still follow another history. First, upstream itself must have
// shown the state in that era. For events, Carries is always false: etcd deletes many of them at
// one revision, and the cache may have seen only some of those deletions.
func (f *Feed) Carries(era uint64) bool {
	return !f.Cache().Resource().NoWatchCache && f.fresh.era.Load() == era+1 && f.Ledger.Has(f.Owner)
}

// lists reports whether a run should list the collection, because the list costs upstream no more
// than the requests that it replaces.
func (f *Feed) lists(s watchcache.Stats) bool {
	era, _ := f.Ledger.Position(f.Owner)
	return !f.Carries(era) && (isTiny(s) || feed.IsSmall(s) && f.OthersWrite())
}

// question is upstream's resourceVersion from a probe or a list.
type question struct {
	rv  uint64
	era uint64 // the ledger's era when the request was sent
	// aside is true if the probe was sent for another resource in the same etcd. Upstream's watch
	// cache of the feed's own resource may then be older than rv.
	aside bool
}

// showed reports whether upstream itself has shown the state of a run with this outcome.
func (q question) showed(by *outcome) bool {
	return by.shown == always || by.shown == ifAsked && !q.aside
}

// ask reads upstream's revision with a probe. If a list costs no more, ask lists the state instead.
// The cache then already has that state, and end is set. If the revision is below an earlier
// revision of the cache, etcd was restored, and ask returns [feed.ErrWentBack].
func (f *Feed) ask(ctx context.Context) (q question, end *outcome, err error) {
	began, runs := time.Now(), ctx
	defer func() { f.NoteAnswer(runs, began, err) }()
	ctx, cancel := context.WithTimeout(ctx, feed.AskTimeout)
	defer cancel()
	before := f.Cache().Stats()
	era, noted := f.Ledger.Position(f.Owner)
	q.era = era
	if f.lists(before) {
		end = listed
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
	return q, end, err
}

func (f *Feed) probe(ctx context.Context) (rv uint64, err error) {
	defer f.Metrics.Spend("probe")()
	return f.Probe(ctx)
}

// reach waits until readers see a state at q.rv or later. If the stream does not bring that state,
// reach helps: it sends further requests. It closes slow if they will take long.
func (f *Feed) reach(ctx context.Context, q *question, slow chan<- struct{}) (*outcome, error) {
	ctx, cancel := context.WithTimeout(ctx, freshTimeout)
	defer cancel()
	stats := f.Cache().Stats()
	if stats.Newest >= q.rv {
		return current, nil
	}
	patience := largePatience
	if feed.IsSmall(stats) {
		patience = streamPatience
	}
	if proof := f.settles(ctx, *q, patience); proof != nil {
		return proof, nil
	}
	if !feed.IsSmall(stats) {
		close(slow)
	}
	select {
	case f.fresh.helping <- struct{}{}:
		defer func() { <-f.fresh.helping }()
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	if f.Reaches(ctx, q.rv, 0) {
		return shared, nil // another run has just brought the state
	}
	if q.aside {
		// A probe of the resource itself makes upstream update its own cache of that resource.
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
			return nil, err
		}
		q.rv, q.aside = rv, false
		if f.Reaches(ctx, q.rv, patience) {
			return streamed, nil
		}
	}
	means, err := f.CatchUp(ctx, q.rv)
	return byMeans[means], err
}

func isTiny(s watchcache.Stats) bool { return s.Objects <= TinyObjects && s.Bytes <= tinyBytes }

// settles waits until the ledger or the stream shows the state at q's revision. It returns nil if
// patience runs out.
func (f *Feed) settles(ctx context.Context, q question, patience time.Duration) *outcome {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	stream := make(chan struct{})
	var waiting sync.WaitGroup
	defer waiting.Wait()
	defer cancel()
	for first := true; ; first = false {
		noted := f.Ledger.Wait()
		if f.proved(q) {
			return carried
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
			return streamed
		case <-ctx.Done():
			return nil
		}
	}
}

// proved publishes the newest state as the state at q's revision, if the ledger proves that nothing
// has changed. It reports whether it did.
func (f *Feed) proved(q question) bool {
	_, epoch := f.Position()
	newest := f.Cache().Stats().Newest
	if newest >= q.rv || !f.Carries(q.era) || !f.Ledger.Proves(q.era, f.Owner, newest, q.rv) {
		return false
	}
	done := false
	err := f.Write(epoch, func() error {
		done = f.Cache().Carry(newest, q.rv)
		return nil
	})
	return err == nil && done
}
