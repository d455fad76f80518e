package fresh

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"github.com/watchproxy/watchproxy/watchcache"
	"github.com/watchproxy/watchproxy/watchcache/upstream/client"
	"github.com/watchproxy/watchproxy/watchcache/upstream/feed"
)

// ErrNotFresh means that the cache could not be proved up to date. Upstream has to answer.
var ErrNotFresh = errors.New("cache could not be brought up to date")

// errSlow means that the proof takes longer than the caller waits.
var errSlow = fmt.Errorf("%w: a side watch is needed", ErrNotFresh)

// Feed is a feed whose cache can be proved up to date.
type Feed struct {
	Feed   *feed.Feed
	Keeper *Keeper

	mu struct {
		sync.Mutex
		next *run // gathers readers; nil without waiting readers
	}
	proofs  proofs
	probing chan time.Time // contains the time of the next probe, unless a run probes
	helping chan struct{}  // contains a token while a run sends more than a probe
	read    atomic.Int64   // moment when the last reader came
	failing atomic.Bool    // the last run has failed
	ahead   atomic.Bool    // a proof is under way for later readers within maxAge
	closing atomic.Bool    // a goroutine brings the cache past a hole in the ledger, or pauses
}

// New returns a feed that uses the keeper's ledger and probe budget.
func (k *Keeper) New(f *feed.Feed) *Feed {
	probing := make(chan time.Time, 1)
	probing <- time.Time{}
	return &Feed{
		Feed:    f,
		Keeper:  k,
		probing: probing,
		helping: make(chan struct{}, 1),
	}
}

// Cache returns the feed's cache.
func (f *Feed) Cache() *watchcache.Cache { return f.Feed.Cache() }

// Warnings are the Warning headers in every response from upstream about the resource.
func (f *Feed) Warnings() []string { return f.Feed.Described.Warnings }

// Lost reports whether the feed has lost upstream, and for how long.
func (f *Feed) Lost() (age time.Duration, lost bool) { return f.Feed.Signs.Lost() }

// CompressesWatches reports whether upstream compresses watches that begin with the state.
func (f *Feed) CompressesWatches() bool {
	return !f.Feed.Aggregated && f.Feed.Shared.Client.Compresses.Load()
}

func (f *Feed) options() feed.ResourceOptions {
	return f.Feed.Shared.Options.Load().Resources[f.Feed.GVR.GroupResource()]
}

// ServesConsistent reports whether the configuration lets the cache serve consistent reads.
func (f *Feed) ServesConsistent() bool { return !f.options().ForwardConsistent }

func (f *Feed) busy() bool {
	read := f.read.Load()
	return read != 0 && watchcache.SinceMoment(read) < Needed/6
}

// run brings a cache up to date. It begins with a probe. A reader may share a run only if the run's
// probe is sent after the reader's arrival. So at most one such probe of a feed is in flight, and
// one further run gathers readers for the next probe. Of the runs whose probe was not enough, one
// sends further requests, and the others wait for it. A budget limits the requests of all feeds
// together. Feeds that wait for the budget are served in order.
type run struct {
	readers int           // 0 if the proxy itself began the run, for later readers
	asked   chan struct{} // closed when the probe has succeeded or failed
	slow    chan struct{} // closed when the run needs a side watch
	done    chan struct{} // closed when rv or err is set
	rv      uint64        // upstream's revision after the readers' arrival
	by      string        // the outcome, see [NewMetrics]
	err     error
}

// Fresh returns a state that contains every write acknowledged before the call. Concurrent callers
// share the work. A caller that does not wait for a side watch may get [ErrNotFresh].
//
// After any error, the read goes to upstream or asks again. If ctx ends before upstream has
// answered the probe, Fresh returns [watchcache.ErrNoProgress]. If the last run has failed, a
// caller that does not wait for a side watch waits for [feed.Patience] only: upstream is likely
// to fail the read in the same way, and it should not fail later than upstream itself.
func (f *Feed) Fresh(ctx context.Context, waits bool) (watchcache.Snapshot, error) {
	began := time.Now()
	f.read.Store(watchcache.Moment(began))
	failing := !waits && f.failing.Load()
	if failing {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, feed.Patience)
		defer cancel()
	}
	by := failed
	r, err := f.share(ctx, waits, 1)
	switch {
	case err == nil:
		by = r.by
	case errors.Is(err, errSlow):
		by = forwarded
	case failing && ctx.Err() != nil:
		err = fmt.Errorf("%w: %w", watchcache.ErrNoProgress, err)
	}
	f.Keeper.metrics.freshRead(by, time.Since(began))
	if by != current && by != failed {
		f.Keeper.noteReader(f.Feed.Owner, by == carried)
	}
	if err != nil {
		return watchcache.Snapshot{}, err
	}
	return notOlderThan(f.Cache(), r.rv)
}

// notOlderThan returns the newest state, or an error if that state is older than rv. The state can
// be older because a new epoch can begin after a run has reached rv.
func notOlderThan(c *watchcache.Cache, rv uint64) (watchcache.Snapshot, error) {
	snapshot, err := c.Snapshot()
	if err == nil && snapshot.ResourceVersion() < rv {
		err = fmt.Errorf("%w: the cache went back to %d", ErrNotFresh, snapshot.ResourceVersion())
	}
	return snapshot, err
}

// share joins the next run with 1 or 0 readers, and waits for its end. A caller that does not wait
// for a side watch leaves as soon as the run needs one.
func (f *Feed) share(ctx context.Context, waits bool, readers int) (*run, error) {
	r, err := f.join(readers)
	if err != nil {
		return nil, err
	}
	slow := r.slow
	if waits {
		slow = nil
	}
	select {
	case <-r.done:
	case <-slow:
		return nil, errSlow
	case <-ctx.Done():
		err = ctx.Err()
		select {
		case <-r.asked:
			return nil, fmt.Errorf("%w: %w", ErrNotFresh, err)
		default:
			return nil, fmt.Errorf("%w: upstream does not answer: %w",
				watchcache.ErrNoProgress, err)
		}
	}
	if r.err != nil {
		return nil, fmt.Errorf("%w: %w", ErrNotFresh, r.err)
	}
	return r, nil
}

func (f *Feed) join(readers int) (*run, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.mu.next == nil {
		r := &run{
			asked: make(chan struct{}), slow: make(chan struct{}), done: make(chan struct{}),
		}
		if !f.Feed.Go(func(ctx context.Context) { f.begin(ctx, r) }) {
			return nil, fmt.Errorf("%w: %s has ended", ErrNotFresh, f.Feed)
		}
		f.mu.next = r
	}
	f.mu.next.readers += readers
	return f.mu.next, nil
}

// begin waits until the run's probe may be sent, and brings the cache to the probe's revision.
func (f *Feed) begin(ctx context.Context, r *run) {
	client.Sleep(ctx, time.Until(<-f.probing)) // if ctx has ended, ask returns the error
	_ = f.Keeper.probes.Wait(ctx)
	f.mu.Lock()
	f.mu.next = nil // further readers need a later probe
	f.mu.Unlock()
	began := time.Now()
	q, err := f.ask(ctx)
	close(r.asked)
	next := began
	if r.readers > 1 {
		next = began.Add(time.Duration(min(r.readers, gatherMost)) * gatherFor)
	}
	f.probing <- next
	if err == nil {
		r.by, err = f.reach(ctx, &q, r.slow)
	}
	if err != nil {
		r.by = failed
		f.Feed.Log.Debug("cache could not be brought up to date", zap.Error(err))
	} else {
		f.proofs.note(proof{began, q.rv, q.era})
	}
	f.failing.Store(err != nil)
	gvr := f.Feed.GVR
	f.Keeper.metrics.runs.WithLabelValues(gvr.Group, gvr.Version, gvr.Resource, r.by).Inc()
	r.rv, r.err = q.rv, err
	close(r.done)
}
