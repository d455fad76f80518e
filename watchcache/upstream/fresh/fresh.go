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

// ErrNotFresh means that the cache could not be proved up to date. Upstream has to answer the
// request.
var ErrNotFresh = errors.New("cache could not be brought up to date")

// Feed is a feed whose cache can be proved up to date.
type Feed struct {
	*feed.Feed
	keeper *Keeper
	fresh  freshness
}

// New returns a feed that uses the keeper's ledger and probe budget.
func (k *Keeper) New(f *feed.Feed) *Feed {
	return &Feed{Feed: f, keeper: k, fresh: freshness{helping: make(chan struct{}, 1)}}
}

func (f *Feed) options() feed.ResourceOptions {
	return f.Options.Load().Resources[f.GVR.GroupResource()]
}

const (
	// TinyObjects and tinyBytes are the limits of a tiny collection. A list of a tiny collection
	// costs upstream no more than a probe. So the run sends the list instead of the probe.
	TinyObjects = 100
	tinyBytes   = 128 << 10
	// tinyPatience is the longest normal time for such a list. While other resources are written,
	// the list has to wait for upstream's own cache. A reader who waits longer counts as a reader
	// who needs the ledger.
	tinyPatience = 10 * time.Millisecond
	// readersLast is how long more readers are expected after a reader has come.
	readersLast = 10 * time.Second
	// After a probe, streamPatience is how long a run waits for the stream to reach the probe's
	// revision. Then the run helps. The wait is short, because upstream has already sent the events
	// in its watch cache. largePatience replaces streamPatience for larger collections, where
	// helping takes longer than the next event.
	streamPatience = 5 * time.Millisecond
	largePatience  = 10 * time.Millisecond
	// freshTimeout limits how long a run waits for the cache to catch up.
	freshTimeout = 10 * time.Second
	// After a probe for several readers, the next probe is delayed by gatherFor per reader, at most
	// by gatherMost. So a thousand or more readers a second cost 66 probes a second, of 1.7 ms of
	// upstream's processor time each.
	gatherFor  = time.Millisecond
	gatherMost = 15 * time.Millisecond
	// objectsPerProbe is the number of listed objects that cost as much budget as a probe.
	objectsPerProbe = 100
)

// freshness shares runs among readers. A run brings a cache up to date. It begins with a probe. If
// neither the ledger nor the stream then shows the probe's revision, the run helps the cache: it
// sends further requests. A reader may share a run only if the run's probe is sent after the
// reader's arrival. So at most one probe is in flight, and one further run gathers readers for the
// next probe.
//
// Probes follow each other without a pause unless many readers wait. A budget limits the probes of
// all feeds together. Feeds that wait for the budget are served in order.
type freshness struct {
	mu struct {
		sync.Mutex
		next    *freshRun // gathers readers; nil without waiting readers
		probing bool      // a goroutine sends probes
		proof   proof     // the latest proof
	}
	helping chan struct{} // contains a token while a run helps the cache
	read    atomic.Int64  // moment when the last reader came
	era     atomic.Uint64 // 1 + the last ledger era in which upstream itself showed the state
	looking atomic.Bool   // a run without readers is in flight
	failing atomic.Bool   // the last run has failed
	closing atomic.Bool   // a run is bringing the cache past a hole in the ledger
	rested  atomic.Int64  // no run past a hole begins before this moment
}

// freshRun is one run and its result.
type freshRun struct {
	readers int           // 0 in a run without readers
	asked   chan struct{} // closed when the probe has succeeded or failed
	slow    chan struct{} // closed when the run needs a side watch
	done    chan struct{} // closed when rv or err is set
	rv      uint64        // upstream's revision after the readers' arrival
	outcome *outcome
	err     error
}

// busy reports whether more readers are expected.
func (s *freshness) busy() bool {
	read := s.read.Load()
	return read != 0 && watchcache.SinceMoment(read) < readersLast
}

// ServesConsistent reports whether the cache serves reads of the most recent state. The
// configuration can send these reads to upstream instead.
func (f *Feed) ServesConsistent() bool { return !f.options().ForwardConsistent }

// Fresh returns a state that contains every write acknowledged before the call. All concurrent
// callers share the work.
//
//	tiny collection, no ledger: list it, fast-forward the cache ─► answer
//	small collection without changes at its last list: the same
//	probe ─► the cache has reached its revision ─────────────────► answer
//	      └► all later revisions are other resources' (ledger) ──► answer
//	      └► the stream reaches it within milliseconds ──────────► answer
//	      └► small collection: list it, fast-forward the cache ──► answer
//	      └► else: a side watch brings the rest and a bookmark ──► answer
//
// The side watch takes one to two seconds. A caller that does not wait for it gets [ErrNotFresh].
//
// After any error, the read goes to upstream. If ctx ends before upstream has answered the probe,
// Fresh returns [watchcache.ErrNoProgress]. If the last run has failed, Fresh waits for
// [feed.Patience] only: upstream is likely to fail the read in the same way, and it should not fail
// later than upstream itself.
func (f *Feed) Fresh(ctx context.Context, waits bool) (watchcache.Snapshot, error) {
	began := time.Now()
	f.fresh.read.Store(watchcache.Moment(began))
	failing := f.fresh.failing.Load()
	if failing {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, feed.Patience)
		defer cancel()
	}
	r, err := f.shareRun(ctx, waits)
	waited := time.Since(began)
	if failing && err != nil && ctx.Err() != nil {
		err = fmt.Errorf("%w: %w", watchcache.ErrNoProgress, err)
	}
	switch {
	case errors.Is(err, errSlow):
		f.keeper.metrics.freshRead("forwarded", waited)
		f.keeper.noteReader(f.Owner, false)
		return watchcache.Snapshot{}, err
	case err != nil:
		f.keeper.metrics.freshRead(failed.name, waited)
		return watchcache.Snapshot{}, err
	}
	f.keeper.metrics.freshRead(r.outcome.name, waited)
	if r.outcome != current && (!isTiny(f.Cache().Stats()) || waited > tinyPatience) {
		f.keeper.noteReader(f.Owner, r.outcome == carried)
	}
	return notOlderThan(f.Cache(), r.rv)
}

// errSlow means that the proof takes longer than the caller waits.
var errSlow = fmt.Errorf("%w: a side watch is needed", ErrNotFresh)

// shareRun joins the next run and waits for its end, or until the run needs a side watch.
func (f *Feed) shareRun(ctx context.Context, waits bool) (*freshRun, error) {
	r, err := f.fresh.join(f, 1)
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
		select {
		case <-r.asked:
			return nil, fmt.Errorf("%w: %w", ErrNotFresh, ctx.Err())
		default:
			return nil, fmt.Errorf("%w: upstream does not answer: %w", watchcache.ErrNoProgress, ctx.Err())
		}
	}
	if r.err != nil {
		return nil, fmt.Errorf("%w: %w", ErrNotFresh, r.err)
	}
	return r, nil
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

// join adds readers to the next run. With 0 readers, it requests a run without readers.
func (s *freshness) join(f *Feed, readers int) (*freshRun, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.mu.next == nil {
		s.mu.next = &freshRun{asked: make(chan struct{}), slow: make(chan struct{}), done: make(chan struct{})}
	}
	s.mu.next.readers += readers
	if !s.mu.probing {
		if s.mu.probing = f.Go(func(ctx context.Context) { s.probe(ctx, f) }); !s.mu.probing {
			return nil, fmt.Errorf("%w: %s has ended", ErrNotFresh, f)
		}
	}
	return s.mu.next, nil
}

// gathered reports whether there is a next run. If not, the goroutine that sends probes must end.
func (s *freshness) gathered() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.mu.probing = s.mu.next != nil
	return s.mu.probing
}

// take returns the next run and closes it to further readers.
func (s *freshness) take() *freshRun {
	s.mu.Lock()
	defer s.mu.Unlock()
	r := s.mu.next
	s.mu.next = nil
	return r
}

// probe sends probes as long as readers come. Then it waits for the end of their runs.
func (s *freshness) probe(ctx context.Context, f *Feed) {
	var runs sync.WaitGroup
	defer runs.Wait()
	for s.gathered() {
		_ = f.keeper.probes.WaitN(ctx, f.askCost()) // if ctx has ended, ask returns the error
		r, began := s.take(), time.Now()
		q, end, err := f.ask(ctx)
		close(r.asked)
		runs.Go(func() {
			if err == nil && end == nil {
				end, err = f.reach(ctx, &q, r.slow)
			}
			if err != nil {
				end = failed
				f.Log.Debug("cache could not be brought up to date", zap.Error(err))
			}
			m := f.keeper.metrics
			m.runs.WithLabelValues(f.GVR.Group, f.GVR.Version, f.GVR.Resource, end.name).Inc()
			m.readers.WithLabelValues(f.GVR.Group, f.GVR.Version, f.GVR.Resource).Observe(float64(r.readers))
			s.failing.Store(end == failed)
			if err == nil {
				s.note(proof{began, q.rv})
			}
			if err == nil && q.showed(end) {
				f.fresh.era.Store(q.era + 1)
			}
			r.rv, r.outcome, r.err = q.rv, end, err
			close(r.done)
		})
		client.Sleep(ctx, spacing(r.readers)-time.Since(began))
	}
}

// spacing returns the least time between a probe for this number of readers and the next one.
func spacing(readers int) time.Duration {
	if readers <= 1 {
		return 0
	}
	return min(time.Duration(readers)*gatherFor, gatherMost)
}
