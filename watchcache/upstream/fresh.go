package upstream

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
)

// ErrNotFresh says that the cache could not be shown to be as new as upstream.
// Upstream has to answer the request.
var ErrNotFresh = errors.New("cache could not be brought up to date")

const (
	// tinyObjects and tinyBytes bound a collection whose list costs upstream no
	// more than a probe. Such a collection is listed instead.
	tinyObjects = 100
	tinyBytes   = 128 << 10
	// tinyPatience bounds that list. While others write, upstream's own cache makes it wait.
	tinyPatience = 10 * time.Millisecond
	// smallObjects and smallBytes bound a collection that is listed if the stream
	// does not bring what the probe saw. If a list showed that only others had
	// written, the next run lists without a probe: the probe would lead to the same list.
	smallObjects = 500
	smallBytes   = 1 << 20
	// confirmObjects bounds a collection whose metadata is listed to confirm that
	// nothing has happened. Larger ones get a side watch. The list costs upstream no more than
	// one ordinary list, and there is one at a time.
	confirmObjects = 50_000
	// readersLast is how long after a reader more are expected.
	readersLast = 10 * time.Second
	// streamPatience is how long the stream may take to bring what the probe saw before a run
	// helps. Upstream has already sent what its watch cache has. largePatience is for
	// collections where helping takes longer than the next event.
	streamPatience = 5 * time.Millisecond
	largePatience  = 10 * time.Millisecond
	// sideWatchSeconds makes upstream send a bookmark after about one second, at most some two.
	// The bookmark is due two seconds before the watch times out; a timer of one second sends it.
	sideWatchSeconds = 3
	// askTimeout bounds how long a run waits for upstream's answer, freshTimeout how long it
	// waits for the cache to catch up.
	askTimeout   = 5 * time.Second
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
// Probes follow each other without a pause unless many readers wait: spacing them by up to 100 ms
// made reads slower than kube-apiserver's own and released all readers at once. A budget bounds the
// probes of all feeds together. Feeds that wait for it take turns in order.
type freshness struct {
	mu struct {
		sync.Mutex
		next    *freshRun // gathers readers; nil if nobody waits
		probing bool      // a goroutine sends probes
		over    bool
		proof   proof         // the latest
		ahead   *freshRun     // the last run that began without readers
		due     time.Time     // no probe is sent before
		asks    time.Duration // moving average of a probe's duration
	}
	quiet   atomic.Bool   // the last list showed that only others write
	helping chan struct{} // holds a token while a run catches up
	read    atomic.Int64  // moment of the last reader
	era     atomic.Uint64 // 1 + the ledger's era in which upstream itself last showed the state
	closing atomic.Bool   // a run brings the cache beyond a hole
	rested  atomic.Int64  // moment until which no such run begins
	running sync.WaitGroup
	stop    context.CancelFunc
	ctx     context.Context //nolint:containedctx // the life of the feed's runs
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

func (s *freshness) init(ctx context.Context) {
	s.ctx, s.stop = context.WithCancel(ctx)
	s.helping = make(chan struct{}, 1)
}

// end lets no more runs begin and waits for those in flight.
func (s *freshness) end() {
	s.mu.Lock()
	s.mu.over = true
	s.mu.Unlock()
	s.stop()
	s.running.Wait()
}

// ServesConsistent tells whether the cache answers reads of the most recent state. The
// configuration can leave them to upstream.
func (f *Feed) ServesConsistent() bool { return !f.options.Load().ForwardConsistent }

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
			early = 2*takes + earlyAfter
		}
	}
	r, err := f.shareRun(ctx, early)
	waited := time.Since(began)
	switch {
	case errors.Is(err, errEarly):
		f.keeper.noteReader(false)
		return watchcache.Snapshot{}, err
	case err != nil:
		f.metrics.freshRead("failed", waited)
		return watchcache.Snapshot{}, err
	}
	f.metrics.freshRead(r.outcome, waited)
	f.metrics.saved.Add(takes.Seconds())
	if r.outcome != "current" && (!isTiny(f.cache.Stats()) || waited > tinyPatience) {
		f.keeper.noteReader(r.outcome == proved)
	}
	return f.notOlderThan(r.rv)
}

// errEarly says that a read has waited long enough.
var errEarly = fmt.Errorf("%w: upstream is likely to answer sooner", ErrNotFresh)

// shareRun waits for a run that begins from now on. If the run lasts longer than early after
// upstream has answered the probe, the read may go to upstream; early 0 rules that out.
func (f *Feed) shareRun(ctx context.Context, early time.Duration) (*freshRun, error) {
	r, err := f.fresh.join(f, 1)
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
			if f.early.Allow() {
				return nil, errEarly
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
func (f *Feed) notOlderThan(rv uint64) (watchcache.Snapshot, error) {
	snapshot, err := f.cache.Snapshot()
	if err == nil && snapshot.ResourceVersion() < rv {
		err = fmt.Errorf("%w: the cache went back to %d", ErrNotFresh, snapshot.ResourceVersion())
	}
	return snapshot, err
}

// join adds readers to the next run.
func (s *freshness) join(f *Feed, readers int) (*freshRun, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.joinLocked(f, readers, true)
}

func (s *freshness) joinLocked(f *Feed, readers int, help bool) (*freshRun, error) {
	if s.mu.over {
		return nil, fmt.Errorf("%w: %w", ErrNotFresh, errStopped)
	}
	if s.mu.next == nil {
		s.mu.next = &freshRun{asked: make(chan struct{}), done: make(chan struct{})}
	}
	s.mu.next.readers += readers
	s.mu.next.help = s.mu.next.help || help
	if !s.mu.probing {
		s.mu.probing = true
		s.running.Go(func() { s.probe(f) })
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

// probe sends one probe after another as long as readers come.
func (s *freshness) probe(f *Feed) {
	for s.gathered() {
		_ = f.probes.WaitN(s.ctx, f.askCost()) // a feed that ends fails in ask
		r, began := s.take(), time.Now()
		until := s.spaced(r.readers, began)
		q, outcome, err := f.ask(s.ctx)
		close(r.asked)
		s.took(time.Since(began))
		s.running.Go(func() {
			if err == nil && outcome == "" {
				outcome, err = f.reach(s.ctx, &q, r.help)
			}
			switch {
			case errors.Is(err, errMoved):
				outcome = moved
			case err != nil:
				outcome = "failed"
				f.log.Debug("cache could not be brought up to date", zap.Error(err))
			}
			f.metrics.freshRun(f.gvr, outcome, r.readers)
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
		client.Sleep(s.ctx, time.Until(until))
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
