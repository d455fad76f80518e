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

// ErrNotFresh says that the cache could not be proved to be as new as upstream. Upstream has to
// answer the request.
var ErrNotFresh = errors.New("cache could not be brought up to date")

// Feed is a feed whose cache can be proved to be up to date.
type Feed struct {
	*feed.Feed
	keeper *Keeper
	fresh  freshness
	roads  roads
}

// New returns a feed that uses the keeper's ledger and probe budget.
func (k *Keeper) New(f *feed.Feed) *Feed {
	return &Feed{Feed: f, keeper: k, fresh: freshness{helping: make(chan struct{}, 1)}}
}

func (f *Feed) options() feed.ResourceOptions {
	return f.Options.Load().Resources[f.GVR.GroupResource()]
}

const (
	// TinyObjects and tinyBytes bound a collection whose list costs upstream no more than a probe.
	// Such a collection is listed instead of probed.
	TinyObjects = 100
	tinyBytes   = 128 << 10
	// tinyPatience bounds the time for that list. While other resources are written, the list has
	// to wait for upstream's own cache.
	tinyPatience = 10 * time.Millisecond
	// readersLast is the time after a reader in which more readers are expected.
	readersLast = 10 * time.Second
	// streamPatience is the time that the stream gets after a probe to bring the cache to the
	// probe's revision. After that, the run helps. Upstream has already sent what its watch cache
	// contains. largePatience applies to larger collections, where helping takes longer than the
	// next event.
	streamPatience = 5 * time.Millisecond
	largePatience  = 10 * time.Millisecond
	// freshTimeout bounds the time that a run waits for the cache to catch up.
	freshTimeout = 10 * time.Second
	// After a probe for several readers, the next probe is delayed by gatherFor for each of them,
	// at most by gatherMost. So a thousand or more readers a second cost 66 probes a second. Each
	// probe takes upstream some 1.7 ms of processor time, half of it to wake up (without pauses it
	// takes 0.9 ms).
	gatherFor  = time.Millisecond
	gatherMost = 15 * time.Millisecond
	// objectsPerProbe is the number of listed objects that cost as much budget as one probe.
	objectsPerProbe = 100
)

// freshness shares runs among readers. A run brings a cache up to date. A reader may only share a
// run whose probe is sent after the reader's arrival. So at most one probe is in flight, and one
// further run gathers readers for the next probe.
//
// Probes follow each other without a pause unless many readers wait. With pauses of up to 100 ms,
// reads were slower than kube-apiserver's own, and all readers were released at the same time. A
// budget bounds the probes of all feeds together. Feeds that wait for it take turns in order.
type freshness struct {
	mu struct {
		sync.Mutex
		next    *freshRun     // gathers readers; nil if no reader waits
		probing bool          // a goroutine sends probes
		proof   proof         // the latest proof
		due     time.Time     // no probe is sent before this time
		asks    time.Duration // moving average of a probe's duration
	}
	helping chan struct{} // holds a token while a run catches up
	read    atomic.Int64  // when the last reader came, as a moment
	era     atomic.Uint64 // 1 + the last ledger era in which upstream itself showed the state
	looking atomic.Bool   // a run without readers is due or in flight
	closing atomic.Bool   // a run is bringing the cache past a hole in the ledger
	rested  atomic.Int64  // no such run begins before this moment
}

// freshRun is one run and its result.
type freshRun struct {
	readers int           // 0 if no reader asked for it
	help    bool          // if false, the run only checks whether the cache is current
	asked   chan struct{} // closed when upstream has answered the probe, or failed
	done    chan struct{} // closed when rv or err is set
	rv      uint64        // upstream's revision, read after the readers came
	outcome string
	err     error
}

// busy tells whether more readers are expected.
func (s *freshness) busy() bool {
	read := s.read.Load()
	return read != 0 && watchcache.SinceMoment(read) < readersLast
}

// ServesConsistent tells whether the cache answers reads of the most recent state. The
// configuration can send them to upstream instead.
func (f *Feed) ServesConsistent() bool { return !f.options().ForwardConsistent }

// Fresh returns a state that is not older than the call: it contains every write that was
// acknowledged before the call. All concurrent callers share the work.
//
//	tiny collection, no ledger: list it, fast-forward the cache ─► answer
//	small collection without changes at its last list: the same
//	probe ─► the cache has reached its revision ─────────────────► answer
//	      └► all later revisions are other resources' (ledger) ──► answer
//	      └► the stream reaches it within milliseconds ──────────► answer
//	      └► small collection: list it, fast-forward the cache ──► answer
//	      └► large: its metadata shows that nothing happened ────► answer
//	      └► else: a side watch brings the rest and a bookmark ──► answer
//
// The caller passes a scope if upstream could answer the read instead. If such a read still waits
// long after upstream has answered the probe, Fresh fails with [ErrEarly], and the read goes to
// upstream. A rate limit bounds these reads. After any error, upstream has to answer the read.
func (f *Feed) Fresh(ctx context.Context, scope *watchcache.Scope) (watchcache.Snapshot, error) {
	began := time.Now()
	f.fresh.read.Store(watchcache.Moment(began))
	var takes, early time.Duration
	if scope != nil {
		takes, _ = f.roads.compare(*scope, false)
		if f.direct() {
			early = 2*takes + EarlyAfter
		}
	}
	r, err := f.shareRun(ctx, early)
	waited := time.Since(began)
	switch {
	case errors.Is(err, ErrEarly):
		f.keeper.noteReader(false)
		return watchcache.Snapshot{}, err
	case err != nil:
		f.keeper.metrics.freshRead("failed", waited)
		return watchcache.Snapshot{}, err
	}
	f.keeper.metrics.freshRead(r.outcome, waited)
	f.keeper.metrics.saved.Add(takes.Seconds())
	if r.outcome != "current" && (!isTiny(f.Cache().Stats()) || waited > tinyPatience) {
		f.keeper.noteReader(r.outcome == proved)
	}
	return notOlderThan(f.Cache(), r.rv)
}

// ErrEarly says that a read has waited for too long.
var ErrEarly = fmt.Errorf("%w: upstream is likely to answer sooner", ErrNotFresh)

// shareRun waits for a run that has not sent its probe yet. If the run takes longer than early
// after upstream has answered the probe, shareRun may fail with [ErrEarly]. With early 0 it never
// does.
func (f *Feed) shareRun(ctx context.Context, early time.Duration) (*freshRun, error) {
	r, err := f.fresh.join(f, 1, true)
	if err != nil {
		return nil, err
	}
	asked := r.asked
	if early == 0 {
		asked = nil
	}
	var late <-chan time.Time
	for done := false; !done; {
		select {
		case <-r.done:
			done = true
		case <-asked:
			asked = nil
			timer := time.NewTimer(early)
			defer timer.Stop()
			late = timer.C
		case <-late:
			if f.keeper.early.Allow() {
				return nil, ErrEarly
			}
		case <-ctx.Done():
			return nil, fmt.Errorf("%w: %w", ErrNotFresh, ctx.Err())
		}
	}
	if r.err != nil {
		return nil, fmt.Errorf("%w: %w", ErrNotFresh, r.err)
	}
	return r, nil
}

// notOlderThan returns the newest state if it is at rv or later. It may be older, because a new
// epoch can begin after a run has reached rv.
func notOlderThan(c *watchcache.Cache, rv uint64) (watchcache.Snapshot, error) {
	snapshot, err := c.Snapshot()
	if err == nil && snapshot.ResourceVersion() < rv {
		err = fmt.Errorf("%w: the cache went back to %d", ErrNotFresh, snapshot.ResourceVersion())
	}
	return snapshot, err
}

// join adds readers to the next run. Unless one of its readers wants help, the run only checks
// whether the cache is current.
func (s *freshness) join(f *Feed, readers int, help bool) (*freshRun, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.mu.next == nil {
		s.mu.next = &freshRun{asked: make(chan struct{}), done: make(chan struct{})}
	}
	s.mu.next.readers += readers
	s.mu.next.help = s.mu.next.help || help
	if !s.mu.probing {
		if s.mu.probing = f.Go(func(ctx context.Context) { s.probe(ctx, f) }); !s.mu.probing {
			return nil, fmt.Errorf("%w: %s has ended", ErrNotFresh, f)
		}
	}
	return s.mu.next, nil
}

// gathered tells whether there is a next run. If not, the goroutine that sends probes must end.
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

// probe sends one probe after another as long as readers come, and waits for the end of their runs.
func (s *freshness) probe(ctx context.Context, f *Feed) {
	var runs sync.WaitGroup
	defer runs.Wait()
	for s.gathered() {
		_ = f.keeper.probes.WaitN(ctx, f.askCost()) // if the feed ends, ask returns the error
		r, began := s.take(), time.Now()
		until := s.spaced(r.readers, began)
		q, outcome, err := f.ask(ctx)
		close(r.asked)
		s.took(time.Since(began))
		runs.Go(func() {
			if err == nil && outcome == "" {
				outcome, err = f.reach(ctx, &q, r.help)
			}
			switch {
			case errors.Is(err, errMoved):
				outcome = moved
			case err != nil:
				outcome = "failed"
				f.Log.Debug("cache could not be brought up to date", zap.Error(err))
			}
			m := f.keeper.metrics
			m.runs.WithLabelValues(f.GVR.Group, f.GVR.Version, f.GVR.Resource, outcome).Inc()
			m.readers.WithLabelValues(f.GVR.Group, f.GVR.Version, f.GVR.Resource).Observe(float64(r.readers))
			f.roads.ran(outcome, time.Since(began), r.readers)
			if err == nil {
				s.note(proof{began, q.rv})
			}
			if err == nil && q.shown(outcome) {
				f.fresh.era.Store(q.era + 1)
			}
			r.rv, r.outcome, r.err = q.rv, outcome, err
			close(r.done)
		})
		client.Sleep(ctx, time.Until(until))
	}
}

// spaced sets and returns the earliest time of the next probe, after a probe for this many readers.
func (s *freshness) spaced(readers int, began time.Time) (until time.Time) {
	until = began
	if readers > 1 {
		until = began.Add(min(time.Duration(readers)*gatherFor, gatherMost))
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.mu.due = until
	return until
}

// took records a probe's duration.
func (s *freshness) took(d time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.mu.asks += (d - s.mu.asks) / 4
}
