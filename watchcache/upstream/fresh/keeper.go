package fresh

import (
	"context"
	"errors"
	"io"
	"net/url"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"
	"golang.org/x/time/rate"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/watchproxy/watchproxy/watchcache"
	"github.com/watchproxy/watchproxy/watchcache/object"
	"github.com/watchproxy/watchproxy/watchcache/upstream/client"
	"github.com/watchproxy/watchproxy/watchcache/upstream/discovery"
	"github.com/watchproxy/watchproxy/watchcache/upstream/feed"
	"github.com/watchproxy/watchproxy/watchcache/upstream/ledger"
	"github.com/watchproxy/watchproxy/watchcache/upstream/servers"
)

const (
	// The ledger starts when ledgerReaders consistent readers come within ledgerWithin. If it has
	// proved nothing for ledgerUseless, it costs more than it saves, so it stops for ledgerRest.
	ledgerReaders = 5
	ledgerWithin  = 10 * time.Second
	ledgerUseless = 2 * time.Minute
	ledgerRest    = 10 * time.Minute
	// LedgerIdle is the time for which the ledger is kept after the last such reader.
	LedgerIdle = time.Minute
	// LedgerEvery is the interval at which the ledger compares its watches with discovery, to open
	// and close watches.
	LedgerEvery = 2 * time.Second
	// LinkEvery is the interval at which the ledger looks for missing evidence.
	LinkEvery = 250 * time.Millisecond
	// ledgerRefused is the pause after upstream forbade a watch.
	ledgerRefused = 5 * time.Minute
	// ledgerAgain and ledgerAgainMost bound the pause before a broken watch is reopened.
	ledgerAgain     = time.Second
	ledgerAgainMost = 30 * time.Second
	// ledgerBuffer is the read buffer of a watch, in bytes.
	ledgerBuffer = 4 << 10
	// linkMost is the number of resources that are compared with the reference in one round.
	linkMost = 16
	// holeLooks is the interval at which feeds are checked for holes. If a hole is still there
	// after the same time, a run begins. Such runs take at most a 20th of the time.
	holeLooks = 20 * time.Millisecond
	holeRest  = 20
)

// Keeper keeps the ledger while consistent readers benefit from it. It watches the metadata of all
// resources that upstream serves itself and that no feed watches, and keeps only their revisions.
// So the ledger can prove, without a list, that a quiet cache is current although other resources
// are written.
//
// Every cluster has such foreign writes: leases, events, statuses. A probe then returns a revision
// that a quiet collection's own stream reports only with its next bookmark, up to a minute later.
// All watches together show which resource has used each revision. Some revisions belong to no API
// resource, so no watch shows them. They are holes in the ledger. The apiservers' own leases leave
// one every ten seconds. A run without readers then brings caches past the hole.
//
// kube-apiserver answers consistent lists and probes from its own cache once that has reached
// etcd's revision. While only other resources are written, it asks etcd every 100 ms. Events have
// no such cache, so a probe of events returns immediately. With this probe and the ledger, a list
// of a quiet collection takes 3 ms in the median while there are 200 foreign writes a second. At
// the apiserver it takes 100 ms (make bench-recent).
type Keeper struct {
	*feed.Upstream
	feeds   func() []*Feed // returns the feeds that have a cache
	metrics *Metrics
	probes  *rate.Limiter // the probe budget of all feeds together
	early   *rate.Limiter // bounds reads that go to upstream after a long wait
	wanted  chan struct{}
	// uncached is a resource of the ledger that upstream has no cache for, or nil. A probe of any
	// other resource waits until upstream's cache of that resource is current: up to 100 ms while
	// only other resources are written.
	uncached atomic.Pointer[ledgerWatch]

	mu struct {
		sync.Mutex
		last    time.Time                // when a reader last benefited from the ledger, or would have
		wanted  [ledgerReaders]time.Time // a ring of such times
		next    int
		proved  time.Time // when the ledger last proved something, or began
		resting time.Time // the ledger does not run before this time
	}

	// The following fields are used only by the goroutine of Run.
	watches map[ledger.Owner]*ledgerWatch
	resting map[ledger.Owner]rest // resources that could not be watched
	linked  uint64                // the reference's revision at the last evidence
	running sync.WaitGroup
}

// rest is a pause after a failed watch. Each pause of a resource is longer than the previous one.
type rest struct {
	until time.Time
	pause time.Duration
}

// ledgerWatch is a metadata watch. Only the revisions of its events are kept.
type ledgerWatch struct {
	resource *object.Resource
	owner    ledger.Owner
	stop     context.CancelFunc
	over     chan struct{} // closed when the watch has ended; err is then set
	err      error
	lived    time.Duration // how long the watch was open
}

// NewKeeper returns a Keeper of these feeds.
func NewKeeper(u *feed.Upstream, metrics *Metrics, feeds func() []*Feed) *Keeper {
	return &Keeper{
		Upstream: u, feeds: feeds, metrics: metrics, probes: rate.NewLimiter(rate.Inf, 0), early: rate.NewLimiter(earlyRate, EarlyBurst),
		wanted: make(chan struct{}, 1), resting: map[ledger.Owner]rest{},
	}
}

// SetBudget limits the probes per second that all feeds together send for consistent reads. Up to
// one second's unused budget is saved, so a few readers never wait.
func (k *Keeper) SetBudget(perSecond int) {
	if perSecond <= 0 {
		k.probes.SetLimit(rate.Inf)
		return
	}
	k.probes.SetBurst(max(perSecond, 1+feed.SmallObjects/objectsPerProbe))
	k.probes.SetLimit(rate.Limit(perSecond))
}

// noteReader records a reader for which a probe alone was not enough, and whether the ledger was.
func (k *Keeper) noteReader(proved bool) {
	if !k.Options.Load().Ledger {
		return
	}
	now := time.Now()
	k.mu.Lock()
	k.mu.last = now
	if proved {
		k.mu.proved = now
	}
	before := k.mu.wanted[k.mu.next]
	k.mu.wanted[k.mu.next] = now
	k.mu.next = (k.mu.next + 1) % ledgerReaders
	enough := now.Sub(before) < ledgerWithin && now.After(k.mu.resting)
	k.mu.Unlock()
	if !enough {
		return
	}
	select {
	case k.wanted <- struct{}{}:
	default:
	}
}

// over tells whether readers no longer need the ledger.
func (k *Keeper) over() bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	if time.Since(k.mu.proved) > ledgerUseless {
		k.mu.resting = time.Now().Add(ledgerRest)
		k.Log.Info("ledger of revisions proves nothing; pausing it", zap.Duration("for", ledgerRest))
		return true
	}
	return time.Since(k.mu.last) > LedgerIdle || !k.Options.Load().Ledger
}

// askAside asks upstream for its revision through a resource for which upstream has no cache. ok is
// false if there is no such resource, or if the answer is below known. The caller then probes the
// feed's own resource.
func (k *Keeper) askAside(ctx context.Context, known uint64) (rv uint64, ok bool) {
	w := k.uncached.Load()
	if w == nil || !k.Ledger.Has(w.owner) {
		return 0, false
	}
	done := k.Metrics.Spend("probe")
	p, err := k.Client.Probe(ctx, "probe", w.resource)
	done()
	if err != nil || p.RV < known {
		k.uncached.CompareAndSwap(w, nil)
		k.Ledger.Forget() // the resource may have moved to another etcd
		return 0, false
	}
	return p.RV, true
}

// Run keeps the ledger whenever there are enough readers, until ctx ends.
func (k *Keeper) Run(ctx context.Context) {
	for {
		select {
		case <-k.wanted:
			k.keep(ctx)
		case <-ctx.Done():
			return
		}
	}
}

// keep keeps the ledger until no reader has wanted it for LedgerIdle.
func (k *Keeper) keep(ctx context.Context) {
	ctx, cancel := context.WithCancel(ctx)
	k.watches = map[ledger.Owner]*ledgerWatch{}
	k.Ledger.Begin()
	k.mu.Lock()
	k.mu.proved = time.Now()
	k.mu.Unlock()
	defer func() {
		cancel()
		k.running.Wait()
		k.uncached.Store(nil)
		k.Ledger.End()
	}()
	k.running.Go(func() { k.closeHoles(ctx) })
	var resources []object.Resource
	var known time.Time
	for !k.over() {
		if time.Since(known) > discovery.LocalAge {
			asking, done := context.WithTimeout(ctx, discovery.Timeout)
			now, err := k.Names.Local(asking, resources)
			done()
			if err == nil {
				resources, known = now, time.Now()
			} else if ctx.Err() == nil {
				k.Log.Debug("cannot list the ledger's resources", zap.Error(err))
			}
		}
		if k.fit(ctx, resources) {
			known = time.Time{} // if a watch ended early, its resource may have moved to another server
		}
		pause := LedgerEvery
		if k.link(ctx) {
			pause = LinkEvery
		}
		k.choose()
		if !client.Sleep(ctx, pause) {
			return
		}
	}
}

// fit opens the missing watches and closes those that are not needed any more. It returns whether a
// watch has ended early.
func (k *Keeper) fit(ctx context.Context, resources []object.Resource) (early bool) {
	for o, w := range k.watches {
		select {
		case <-w.over:
			early = k.ended(w) || early
			delete(k.watches, o)
		default:
		}
	}
	fed := map[ledger.Owner]bool{}
	for _, f := range k.feeds() {
		if f.Cache().Stats().Ready {
			fed[f.Owner] = true
		}
	}
	wanted := map[ledger.Owner]bool{}
	for i := range resources {
		r := &resources[i]
		o := k.Owners.Of(r.GVR.GroupResource())
		if o == 0 || fed[o] || k.Options.Load().Excludes(r.GVR) {
			continue
		}
		wanted[o] = true
		if k.watches[o] != nil || time.Now().Before(k.resting[o].until) {
			continue
		}
		watching, stop := context.WithCancel(ctx)
		w := &ledgerWatch{resource: r, owner: o, stop: stop, over: make(chan struct{})}
		k.watches[o] = w
		k.running.Go(func() {
			defer close(w.over)
			w.lived, w.err = k.watch(watching, w)
		})
	}
	for o, w := range k.watches {
		if !wanted[o] {
			w.stop()
			delete(k.watches, o)
		}
	}
	return early
}

// ended decides when the next watch of a resource opens, after its watch ended by itself. It
// returns whether the watch ended early.
func (k *Keeper) ended(w *ledgerWatch) (early bool) {
	w.stop()
	opened := w.lived > 0
	if opened && w.err == nil && w.lived >= feed.WatchLife {
		return false
	}
	if opened {
		k.Ledger.Forget() // the next watch may come from a restored etcd
	}
	pause := min(max(2*k.resting[w.owner].pause, ledgerAgain), ledgerAgainMost)
	switch {
	case client.Answered(w.err) && !client.Doubtful(w.err) && !apierrors.IsTooManyRequests(w.err) && !apierrors.IsResourceExpired(w.err):
		pause = ledgerRefused
	case w.lived > ledgerAgainMost:
		pause = ledgerAgain
	}
	k.resting[w.owner] = rest{time.Now().Add(pause), pause}
	k.Log.Debug("ledger watch ended", zap.Stringer("resource", w.resource.GVR), zap.Duration("again", pause), zap.Error(w.err))
	return opened
}

// watch follows one watch that starts at the present.
func (k *Keeper) watch(ctx context.Context, w *ledgerWatch) (lived time.Duration, err error) {
	c, gvr := k.Client, w.resource.GVR
	end, err := k.Health.Turns.Wait(ctx, func() servers.Urgency { return servers.Urgency{} })
	if err != nil {
		return 0, err
	}
	defer end()
	if err := k.probes.Wait(ctx); err != nil {
		return 0, err
	}
	asking, cancel := context.WithTimeout(ctx, feed.AskTimeout)
	p, err := c.Probe(asking, ledgerVerb, w.resource)
	cancel()
	if err != nil {
		return 0, err
	}
	resp, err := c.GetAs(ctx, AcceptMetadataEvents, ledgerVerb, gvr, client.ResourcePath(gvr, ""), url.Values{
		"watch": {"true"}, "allowWatchBookmarks": {"true"}, "resourceVersion": {strconv.FormatUint(p.RV, 10)},
	})
	if err != nil {
		return 0, err
	}
	defer resp.Body.Close() //nolint:errcheck // read to its end, or does not matter
	end()
	opened := time.Now()
	err = k.read(client.NewProtoStream(resp.Body, &metadataOnly, ledgerBuffer), w.owner, p.RV)
	return max(time.Since(opened), 1), err
}

// read records the revisions that a watch shows until its end. The watch starts at the revision
// from.
func (k *Keeper) read(s client.Stream, o ledger.Owner, from uint64) error {
	for used := (ledger.Uses{At: from}); ; {
		e, err := s.Next()
		switch {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return err
		case e.Kind == "ERROR":
			return client.EventError(e, object.Protobuf)
		}
		rv, err := object.ParseVersion(e.Object)
		switch {
		case err != nil:
			return err
		case e.Kind == "BOOKMARK":
			used.Reached(rv)
		default:
			used.Event(rv)
			k.Uses(o, used.Take()...)
		}
	}
}

// ledgerVerb is the verb under which metrics count the ledger's requests.
const ledgerVerb = "ledger"

// AcceptMetadataEvents asks for watch events with the metadata of objects only.
const AcceptMetadataEvents = client.MimeProtobuf + ";as=PartialObjectMetadata;g=meta.k8s.io;v=v1"

// metadataOnly describes objects that are requested as metadata only.
var metadataOnly = object.Resource{
	GVR:  metav1.SchemeGroupVersion.WithResource("partialobjectmetadata"),
	Kind: "PartialObjectMetadata", Encoding: object.Protobuf, Namespaced: true,
}

// closeHoles begins runs for caches that the ledger cannot prove current: caches before a hole,
// and, in a new era, all caches. So readers do not have to wait for these runs.
func (k *Keeper) closeHoles(ctx context.Context) {
	for client.Sleep(ctx, holeLooks) {
		for _, f := range k.feeds() {
			at, unproved := k.unproved(f)
			if !unproved || !f.fresh.busy() || watchcache.Moment(time.Now()) < f.fresh.rested.Load() {
				continue
			}
			if f.fresh.closing.CompareAndSwap(false, true) {
				k.running.Go(func() {
					defer f.fresh.closing.Store(false)
					client.Sleep(ctx, holeLooks) // the missing revision may still arrive
					if now, unproved := k.unproved(f); unproved && now == at {
						began := time.Now()
						_, _ = f.shareRun(ctx, 0) // like a reader
						f.fresh.rested.Store(watchcache.Moment(time.Now().Add(holeRest * time.Since(began))))
					}
				})
			}
		}
	}
}

// unproved tells whether the ledger covers a feed but cannot prove its cache current. at is then
// the revision before the hole, or 0 if upstream has not shown the cache's state in this era yet.
func (k *Keeper) unproved(f *Feed) (at uint64, unproved bool) {
	if f.Cache().Resource().NoWatchCache || !k.Ledger.Has(f.Owner) {
		return 0, false
	}
	era, highest := k.Ledger.Standing(f.Owner)
	if !f.Carries(era) {
		return 0, true
	}
	at = f.Cache().Stats().Newest
	return at, at < highest && !k.Ledger.Proves(era, f.Owner, at, highest)
}
