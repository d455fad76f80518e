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
// The request is for upstream to answer.
var ErrNotFresh = errors.New("cache could not be brought up to date")

const (
	// tinyObjects and tinyBytes bound a collection whose list costs upstream no
	// more than a probe: it is listed instead.
	tinyObjects = 100
	tinyBytes   = 128 << 10
	// tinyPatience is how long that may take. If others write, upstream's own cache makes it wait.
	tinyPatience = 10 * time.Millisecond
	// smallObjects and smallBytes bound a collection that is listed if the stream
	// does not bring what the probe has seen. If a list showed that only others had
	// written since, the next run does not probe first: it would come to the same.
	smallObjects = 500
	smallBytes   = 1 << 20
	// confirmObjects bounds a collection whose metadata is listed to confirm that
	// nothing has happened. Larger ones are watched aside. It costs upstream no more than
	// one of the lists that it answers, and there is one at a time.
	confirmObjects = 50_000
	// readersLast is for how long after a reader others are expected.
	readersLast = 10 * time.Second
	// streamPatience is how long the stream may take to bring that before it is
	// helped. What upstream's watch cache has, it has sent; largePatience is for
	// collections where helping takes longer than their next event.
	streamPatience = 5 * time.Millisecond
	largePatience  = 10 * time.Millisecond
	// sideWatchSeconds makes upstream send a bookmark after about a second, at most
	// some two: it is due two seconds before a watch times out, and sent when a
	// timer of a second finds it so.
	sideWatchSeconds = 3
	// askTimeout bounds what a run waits for upstream to tell where it stands,
	// freshTimeout what it waits for the cache to get there.
	askTimeout   = 5 * time.Second
	freshTimeout = 10 * time.Second
	// gatherFor is how long after the probe of several readers the next is sent, for each of them, and
	// gatherMost the most of that. So a thousand readers a second or more gather for 66 probes a second:
	// each takes upstream some 1.7 ms of processor time, half of it to wake up (0.9 if they follow each other).
	gatherFor  = time.Millisecond
	gatherMost = 15 * time.Millisecond
	// objectsPerProbe is how many listed objects count as much as a probe against the budget.
	objectsPerProbe = 100
)

// freshness shares the runs that bring a cache up to date among the readers
// that need it. A reader may only share a run whose probe is sent after the
// reader came; so there is at most one probe on its way, and one run that
// gathers the readers for the next.
//
// Probes follow each other without a pause, unless there is a crowd: to space them by up to 100 ms made
// reads slower than kube-apiserver's own, and released all at once. A budget bounds the probes of all feeds
// together. Feeds that wait for it get their turns in order.
type freshness struct {
	mu struct {
		sync.Mutex
		next    *freshRun // gathers readers; nil if nobody waits
		probing bool      // a goroutine is running what is next
		over    bool
		proof   proof         // the latest
		ahead   *freshRun     // the last that was begun before a reader needed it
		due     time.Time     // before when no probe is sent
		asks    time.Duration // what a probe takes: a moving average
	}
	quiet   atomic.Bool   // by the last list, upstream's revision grows by what others write
	helping chan struct{} // holds a token while a run catches up
	read    atomic.Int64  // moment of the last reader
	era     atomic.Uint64 // of the ledger, in which upstream itself has shown the state, and 1
	closing atomic.Bool   // the ledger brings the cache beyond a hole
	rested  atomic.Int64  // moment until which it does not
	running sync.WaitGroup
	stop    context.CancelFunc
	ctx     context.Context //nolint:containedctx // the life of the feed's runs
}

// freshRun is one run.
type freshRun struct {
	readers int           // 0 if it was begun for what it shows
	help    bool          // else it only looks whether anything has happened
	asked   chan struct{} // closed when upstream has answered the probe, or failed
	done    chan struct{} // closed when rv or err is set
	rv      uint64        // upstream's after the readers came
	outcome string
	err     error
}

// busy tells whether more readers are to be expected.
func (s *freshness) busy() bool {
	read := s.read.Load()
	return read != 0 && watchcache.SinceMoment(read) < readersLast
}

func (s *freshness) init(ctx context.Context) {
	s.ctx, s.stop = context.WithCancel(ctx)
	s.helping = make(chan struct{}, 1)
}

// end lets no more runs begin and waits for those that are.
func (s *freshness) end() {
	s.mu.Lock()
	s.mu.over = true
	s.mu.Unlock()
	s.stop()
	s.running.Wait()
}

// ServesConsistent tells whether reads of the most recent state are for the cache,
// and not left to upstream by configuration.
func (f *Feed) ServesConsistent() bool { return !f.options.Load().ForwardConsistent }

// Fresh returns a state that is not older than the call: what was written and
// acknowledged before is in it. It shares the work with all other callers.
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
// A read that upstream could answer has a scope. If it waits long though upstream has answered the probe,
// it is left to upstream, up to a few a second.
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

// errEarly says that a read has waited for long enough.
var errEarly = fmt.Errorf("%w: upstream is likely to answer sooner", ErrNotFresh)

// shareRun waits for a run that begins from now on. If that takes for so long after upstream has answered
// the probe, the read may be for upstream; not if early is 0.
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

// notOlderThan returns the newest state. A new epoch may have begun since the run
// that reached rv.
func (f *Feed) notOlderThan(rv uint64) (watchcache.Snapshot, error) {
	snapshot, err := f.cache.Snapshot()
	if err == nil && snapshot.ResourceVersion() < rv {
		err = fmt.Errorf("%w: the cache went back to %d", ErrNotFresh, snapshot.ResourceVersion())
	}
	return snapshot, err
}

// join adds readers to the run that is next.
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

// gathered tells whether readers wait for a probe. If not, the goroutine that
// asks must not send any more.
func (s *freshness) gathered() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.mu.probing = s.mu.next != nil
	return s.mu.probing
}

// take returns the run that is next, to which nobody is added any more.
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
		_ = f.probes.WaitN(s.ctx, f.askCost()) // a feed that ends is told so below
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

// spaced tells until when no other probe is sent after one for so many readers.
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

// took notes what a probe took.
func (s *freshness) took(d time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.mu.asks += (d - s.mu.asks) / 4
}
