package fresh

import (
	"context"
	"errors"
	"time"

	"github.com/watchproxy/watchproxy/watchcache/upstream/feed"
)

// The outcomes of runs, in the order in which a run tries them. [feed.Feed.CatchUp] has the others.
const (
	current   = "current" // the cache had reached the revision already
	carried   = "ledger"
	streamed  = "stream"
	shared    = "shared" // the run before had sent more than a probe
	failed    = "failed"
	forwarded = "forwarded" // of a read: it did not wait for the run
)

// question is upstream's revision, from a probe.
type question struct {
	rv  uint64
	era uint64 // the ledger's era when the probe was sent
	// own is true if the probe was for the feed's own resource. Otherwise upstream's watch cache of
	// the resource may be older than rv.
	own bool
}

// Carries reports whether the ledger may prove the cache current. At the beginning of each era, it
// may not, because the stream may still follow another history. First, upstream itself must have
// shown the state in that era. For events, Carries is always false: etcd deletes many of them at
// one revision, and the cache may have seen only some of those deletions.
func (f *Feed) Carries(era uint64) bool {
	return !f.Cache().Resource().NoWatchCache && f.era.Load() == era+1 && f.Ledger.Has(f.Owner)
}

// ask reads upstream's revision. If the cache has seen a higher one, etcd was restored, and ask
// returns [feed.ErrWentBack].
func (f *Feed) ask(ctx context.Context) (q question, err error) {
	began, runs := time.Now(), ctx
	defer func() { f.NoteAnswer(runs, began, err) }()
	ctx, cancel := context.WithTimeout(ctx, feed.AskTimeout)
	defer cancel()
	era, noted := f.Ledger.Position(f.Owner)
	if f.Carries(era) {
		if rv, ok := f.keeper.askEvents(ctx, max(f.Cache().Stats().Newest, noted)); ok {
			return question{rv, era, false}, nil
		}
	}
	rv, err := f.askOwn(ctx, noted)
	return question{rv, era, true}, err
}

// askOwn reads upstream's revision with a probe of the feed's own resource. The probe makes upstream
// bring its watch cache of that resource to this revision. If others are written, and the resource is
// not, this takes up to 100 ms. If the ledger has noted a higher revision, it was noted of another etcd
// or of a lost history.
func (f *Feed) askOwn(ctx context.Context, noted uint64) (rv uint64, err error) {
	done := f.Metrics.Spend("probe")
	rv, err = f.Probe(ctx)
	done()
	back := errors.Is(err, feed.ErrWentBack)
	if back {
		f.Interrupt(err)
	}
	if back || err == nil && rv < noted {
		f.Ledger.Forget()
	}
	return rv, err
}

// reach waits until readers see a state at q.rv or later. If neither the ledger nor the stream shows
// that state, reach sends further requests. It closes slow if they take more than a moment.
func (f *Feed) reach(ctx context.Context, q *question, slow chan<- struct{}) (by string, err error) {
	stats := f.Cache().Stats()
	if stats.Newest >= q.rv {
		return current, nil
	}
	if by := f.settles(ctx, *q); by != "" {
		return by, nil
	}
	if !feed.IsSmall(stats) {
		close(slow)
	}
	ctx, cancel := context.WithTimeout(ctx, 2*feed.AskTimeout) // of the run before, and of this one
	defer cancel()
	if !q.own {
		if err := f.keeper.probes.Wait(ctx); err != nil {
			return "", err
		}
		rv, err := f.askOwn(ctx, q.rv)
		if err != nil {
			return "", err
		}
		q.rv, q.own = rv, true
	}
	select {
	case f.helping <- struct{}{}:
		defer func() { <-f.helping }()
	case <-ctx.Done():
		return "", ctx.Err()
	}
	if f.Reaches(ctx, q.rv, 0) {
		return shared, nil
	}
	return f.CatchUp(ctx, q.rv)
}

// settles waits until the ledger or the stream shows the state at q's revision. It returns "" if
// neither does so in time.
func (f *Feed) settles(ctx context.Context, q question) (by string) {
	ctx, cancel := context.WithTimeout(ctx, streamWait)
	defer cancel()
	for {
		noted, published := f.Ledger.Wait(), f.Cache().Published()
		switch {
		case f.proved(q):
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
