package fresh

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/watchproxy/watchproxy/watchcache"
	"github.com/watchproxy/watchproxy/watchcache/upstream/feed"
)

// The outcomes of runs, in the order in which a run tries them. [feed.CatchUp] has the others.
const (
	current   = "current" // the cache had reached the revision already
	carried   = "ledger"
	streamed  = "stream"
	shared    = "shared" // the run before had sent more than a probe
	failed    = "failed"
	forwarded = "forwarded" // of a read: it did not wait for the run
)

type question struct {
	rv uint64
	// own is true if the probe was for the feed's own resource. Otherwise upstream's watch cache of
	// the resource may be older than rv.
	own bool
	// era and noted are the ledger's position before the probe was sent.
	era, noted uint64
}

// objectsPerProbe is the number of listed objects that cost as much of the budget as a probe.
const objectsPerProbe = 100

// price is what the requests after the question cost of the budget, in probes.
func (q *question) price(s watchcache.Stats) (probes int) {
	probes = 1 // a side watch or a list
	if !q.own {
		probes++
	}
	if feed.IsSmall(s) {
		probes += s.Objects / objectsPerProbe
	}
	return probes
}

// Carries reports whether the ledger may prove the cache current: not for events (see [Ledger]),
// and not before a proof in the era, of which the first comes from upstream itself, because the
// stream may still follow another history.
func (f *Feed) Carries(era uint64) bool {
	last := f.proofs.last()
	return !last.at.IsZero() && last.era == era &&
		!f.Cache().Resource().NoWatchCache && f.Keeper.Ledger.Has(f.Feed.Owner)
}

// ask reads upstream's revision. Its errors include [feed.ErrWentBack].
func (f *Feed) ask(ctx context.Context) (q question, err error) {
	began, runs := time.Now(), ctx
	defer func() { f.Feed.NoteAnswer(runs, began, err) }()
	ctx, cancel := context.WithTimeout(ctx, feed.AskTimeout)
	defer cancel()
	q.era, q.noted = f.Keeper.Ledger.Position(f.Feed.Owner)
	if f.Carries(q.era) {
		rv, ok := f.Keeper.askEvents(ctx, max(f.Cache().Stats().Newest, q.noted))
		if ok {
			q.rv = rv
			return q, nil
		}
	}
	err = f.askOwn(ctx, &q)
	return q, err
}

// askOwn probes the feed's own resource, so that upstream brings its watch cache of the resource to
// the revision (see [Keeper]). If the ledger had noted a higher revision, that history is lost. If
// the probe of events had returned a higher one, events are in another etcd.
func (f *Feed) askOwn(ctx context.Context, q *question) error {
	rv, err := feed.Probe(ctx, f.Feed.Shared.Client, f.Cache())
	if err == nil && rv < q.noted {
		err = fmt.Errorf("%w: from %d to %d", feed.ErrWentBack, q.noted, rv)
	}
	back := errors.Is(err, feed.ErrWentBack)
	if back {
		f.Feed.Main.Interrupt(err)
	}
	if back && q.noted > 0 {
		f.Keeper.wentBack(err)
	}
	if back || err == nil && rv < q.rv {
		f.Keeper.Ledger.Forget()
	}
	q.rv, q.own = rv, true
	return err
}

// reach waits until readers see a state at q.rv or later. If neither the ledger nor the stream
// shows that state, reach sends further requests. Before, it closes slow unless the collection is
// small.
func (f *Feed) reach(ctx context.Context, q *question, slow chan<- struct{}) (string, error) {
	stats := f.Cache().Stats()
	if stats.Newest >= q.rv {
		return current, nil
	}
	if by := f.await(ctx, *q); by != "" {
		return by, nil
	}
	if !feed.IsSmall(stats) {
		close(slow)
	}
	ctx, cancel := context.WithTimeout(ctx, 2*feed.AskTimeout) // also for the run before
	defer cancel()
	select {
	case f.helping <- struct{}{}:
		defer func() { <-f.helping }()
	case <-ctx.Done():
		return "", ctx.Err()
	}
	if feed.Reaches(ctx, f.Cache(), q.rv, 0) {
		return shared, nil
	}
	if err := f.Keeper.probes.WaitN(ctx, q.price(stats)); err != nil {
		return "", err
	}
	if !q.own {
		if err := f.askOwn(ctx, q); err != nil {
			return "", err
		}
		if by := f.await(ctx, *q); by != "" { // events that were late have come
			return by, nil
		}
	}
	return f.Feed.CatchUp.To(ctx, q.rv)
}

// await waits a little until the ledger or the stream shows the state at q's revision.
func (f *Feed) await(ctx context.Context, q question) (by string) {
	ctx, cancel := context.WithTimeout(ctx, streamWait)
	defer cancel()
	for {
		noted, published := f.Keeper.Ledger.Wait(), f.Cache().Published()
		switch {
		case f.proves(q):
			return carried
		case f.Cache().Stats().Newest >= q.rv:
			return streamed
		}
		select {
		case <-noted:
		case <-published:
		case <-ctx.Done():
			return ""
		}
	}
}

// proves publishes the newest state as the state at q's revision, if the ledger proves that nothing
// has changed. It reports whether it did.
func (f *Feed) proves(q question) bool {
	_, epoch := f.Feed.Writer.Position()
	newest := f.Cache().Stats().Newest
	if newest >= q.rv || !f.Carries(q.era) ||
		!f.Keeper.Ledger.Proves(q.era, f.Feed.Owner, newest, q.rv) {
		return false
	}
	done := false
	err := f.Feed.Writer.Write(epoch, func() error {
		done = f.Cache().Writer().Carry(newest, q.rv)
		return nil
	})
	return err == nil && done
}
