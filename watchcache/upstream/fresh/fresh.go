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

// ErrNotFresh says that the cache could not be shown to be as new as upstream.
// Upstream has to answer the request.
var ErrNotFresh = errors.New("cache could not be brought up to date")

// Feed is a feed whose cache can be shown to be up to date.
type Feed struct {
	*feed.Feed
	keeper *Keeper
	fresh  freshness
	roads  roads
}

// New returns a feed that shares its proofs with those of the keeper.
func (k *Keeper) New(f *feed.Feed) *Feed {
	return &Feed{Feed: f, keeper: k, fresh: freshness{helping: make(chan struct{}, 1)}}
}

func (f *Feed) options() feed.ResourceOptions {
	return f.Options.Load().Resources[f.GVR.GroupResource()]
}

const (
	// TinyObjects and tinyBytes bound a collection whose list costs upstream no
	// more than a probe. Such a collection is listed instead.
	TinyObjects = 100
	tinyBytes   = 128 << 10
	// tinyPatience bounds that list. While other resources are written, upstream's own cache makes
	// the list wait.
	tinyPatience = 10 * time.Millisecond
	// readersLast is how long after a reader more are expected.
	readersLast = 10 * time.Second
	// streamPatience is how long the stream may take to bring what the probe saw before a run
	// helps. Upstream has already sent what its watch cache has. largePatience is for
	// collections where helping takes longer than the next event.
	streamPatience = 5 * time.Millisecond
	largePatience  = 10 * time.Millisecond
	// freshTimeout bounds how long a run waits for the cache to catch up.
	freshTimeout = 10 * time.Second
	// After a probe of several readers, the next waits gatherFor for each of them, at most
	// gatherMost. So a thousand or more readers a second cost 66 probes a second. Each probe takes
	// upstream some 1.7 ms of processor time, half of it for the wake-up (0.9 ms back to back).
	gatherFor  = time.Millisecond
	gatherMost = 15 * time.Millisecond
	// objectsPerProbe is how many listed objects cost as much budget as one probe.
	objectsPerProbe = 100
)

// freshness shares the runs that bring a cache up to date among the readers that need it. A reader
// may only share a run whose probe is sent after the reader came. So at most one probe is in
// flight, and one run gathers the readers of the next.
//
// Probes follow each other without a pause unless many readers wait. With pauses of up to 100 ms,
// reads were slower than kube-apiserver's own, and all readers were released at once. A budget
// bounds the probes of all feeds together. Feeds that wait for it take turns in order.
type freshness struct {
	mu struct {
		sync.Mutex
		next    *freshRun     // gathers readers; nil if no reader waits
		probing bool          // a goroutine sends probes
		proof   proof         // the latest
		due     time.Time     // no probe is sent before
		asks    time.Duration // moving average of a probe's duration
	}
	helping chan struct{} // holds a token while a run catches up
	read    atomic.Int64  // moment of the last reader
	era     atomic.Uint64 // 1 + the ledger's era in which upstream itself last showed the state
	looking atomic.Bool   // a run without readers is due or in flight
	closing atomic.Bool   // a run brings the cache beyond a hole
	rested  atomic.Int64  // moment until which no such run begins
}

// freshRun is one run.
type freshRun struct {
	readers int           // 0 if no reader asked for it
	help    bool          // if false, the run only checks whether anything has happened
	asked   chan struct{} // closed when upstream has answered the probe, or failed
	done    chan struct{} // closed when rv or err is set
	rv      uint64        // upstream's, read after the readers came
	outcome string
	err     error
}

// busy tells whether more readers are expected.
func (s *freshness) busy() bool {
	read := s.read.Load()
	return read != 0 && watchcache.SinceMoment(read) < readersLast
}

// ServesConsistent tells whether the cache answers reads of the most recent state. The
// configuration can leave them to upstream.
func (f *Feed) ServesConsistent() bool { return !f.options().ForwardConsistent }

// Fresh returns a state that is not older than the call: it contains every write that was
// acknowledged before. All concurrent callers share the work.
//
//	tiny collection, no ledger: list it, fast-forward the cache ─► answer
//	small and quiet when last listed: the same
//	probe ─► the cache is there ─────────────────────────────────► answer
//	      └► all revisions since are other resources' (ledger) ───► answer
//	      └► the stream gets there in a moment ──────────────────► answer
//	      └► small collection: list it, fast-forward the cache ──► answer
//	      └► large: its metadata shows that nothing happened ────► answer
//	      └► else: a side watch brings the rest and a bookmark ──► answer
//
// A read that upstream could answer has a scope. If it still waits long after upstream has answered
// the probe, it goes to upstream; a rate limit bounds such reads.
//
// It fails with [ErrNotFresh].
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

// ErrEarly says that a read has waited long enough.
var ErrEarly = fmt.Errorf("%w: upstream is likely to answer sooner", ErrNotFresh)

// shareRun waits for a run that begins from now on. If the run lasts longer than early after
// upstream has answered the probe, the read may go to upstream; early 0 rules that out.
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

// notOlderThan returns the newest state. A new epoch may have begun after the run that reached rv.
func notOlderThan(c *watchcache.Cache, rv uint64) (watchcache.Snapshot, error) {
	snapshot, err := c.Snapshot()
	if err == nil && snapshot.ResourceVersion() < rv {
		err = fmt.Errorf("%w: the cache went back to %d", ErrNotFresh, snapshot.ResourceVersion())
	}
	return snapshot, err
}

// join adds readers to the next run. Without help, the run only checks.
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

// gathered tells whether readers wait for a probe. If not, the goroutine that probes must end.
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

// probe sends one probe after another as long as readers come, and waits for their runs.
func (s *freshness) probe(ctx context.Context, f *Feed) {
	var runs sync.WaitGroup
	defer runs.Wait()
	for s.gathered() {
		_ = f.keeper.probes.WaitN(ctx, f.askCost()) // a feed that ends fails in ask
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

// spaced sets and returns the earliest time of the next probe after one for this many readers.
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

// took notes a probe's duration.
func (s *freshness) took(d time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.mu.asks += (d - s.mu.asks) / 4
}
