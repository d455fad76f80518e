package fresh

import (
	"context"
	"errors"
	"io"
	"maps"
	"net/url"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"
	"golang.org/x/time/rate"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/watchproxy/watchproxy/watchcache/object"
	"github.com/watchproxy/watchproxy/watchcache/upstream/client"
	"github.com/watchproxy/watchproxy/watchcache/upstream/discovery"
	"github.com/watchproxy/watchproxy/watchcache/upstream/feed"
	"github.com/watchproxy/watchproxy/watchcache/upstream/ledger"
	"github.com/watchproxy/watchproxy/watchcache/upstream/servers"
)

const (
	// The ledger starts when ledgerReaders consistent readers come within ledgerWithin. If the
	// ledger has proved nothing for ledgerUseless, its cost is higher than its benefit. It then
	// stops for ledgerRest.
	ledgerReaders = 5
	ledgerWithin  = 10 * time.Second
	ledgerUseless = 2 * time.Minute
	ledgerRest    = 10 * time.Minute
	// LedgerIdle is how long the ledger runs after the last reader who would benefit from it.
	LedgerIdle = time.Minute
	// LedgerEvery is the interval at which the keeper opens missing watches and closes unneeded
	// watches.
	LedgerEvery = 2 * time.Second
	// LinkEvery is the interval at which the keeper collects missing evidence that resources share
	// an etcd.
	LinkEvery = 250 * time.Millisecond
	// ledgerRefused is the pause after upstream has refused a watch.
	ledgerRefused = 5 * time.Minute
	// ledgerAgain and ledgerAgainMost are the shortest and the longest pause before a broken watch
	// is reopened.
	ledgerAgain     = time.Second
	ledgerAgainMost = 30 * time.Second
	// ledgerBuffer is the read buffer of a watch, in bytes.
	ledgerBuffer = 4 << 10
	// linkMost is the maximum number of resources that one round compares with the reference
	// resource (namespaces). Those with readers come first.
	linkMost = 16
	// holeLooks is the interval at which feeds are checked for holes. If a hole still exists after
	// another holeLooks, a run begins. The next run for the same feed begins after holeRest times
	// the run's duration. So a feed spends at most a 20th of the time in such runs.
	holeLooks = 20 * time.Millisecond
	holeRest  = 20
)

// Keeper maintains the ledger while consistent readers benefit from it. It watches the metadata of
// all resources that upstream serves itself and that no feed watches. From each event, it keeps
// only the revision. So the ledger can prove without a list that a quiet cache is current, even
// while other resources are written.
//
// Every cluster has foreign writes (writes to other resources): leases, events, statuses. A probe
// then returns a revision that a quiet collection's own stream does not report yet. The stream
// reports that revision with its next bookmark, up to a minute later. The watches of all resources
// together show which resource used each revision. Some revisions belong to no API resource, so no
// watch shows them. These revisions are holes in the ledger. For example, the apiservers' own
// leases cause a hole every ten seconds. If a hole blocks a cache, the keeper starts a freshness
// run (see the package) although no reader waits. The run brings the cache past the hole.
//
// kube-apiserver answers consistent lists and probes from its watch cache once that cache has
// reached etcd's revision. If the resource itself is not written, kube-apiserver asks etcd for
// progress every 100 ms. So such a list or probe takes up to 100 ms. Events have no watch cache, so
// a probe of events returns immediately. The keeper therefore probes events. With 200 foreign
// writes a second, the list of a quiet collection has a median latency of 3 ms. At the apiserver,
// the median is 100 ms (make bench-recent).
type Keeper struct {
	*feed.Upstream
	feeds   func() []*Feed // returns the feeds that have a cache
	metrics *Metrics
	probes  *rate.Limiter // the probe budget of all feeds
	wanted  chan struct{}
	// uncached is a resource of the ledger without a watch cache at upstream, or nil. A probe of
	// any other resource waits for upstream's watch cache of that resource: up to 100 ms while only
	// other resources are written.
	uncached atomic.Pointer[ledgerWatch]

	mu struct {
		sync.Mutex
		last    time.Time                // when a reader last needed more than a probe
		wanted  [ledgerReaders]time.Time // a ring of such readers' times
		next    int
		proved  time.Time // when the ledger began or last proved something
		resting time.Time // the ledger does not run before this time
	}

	// The following fields are used only by the goroutine of Run.
	watches map[ledger.Owner]*ledgerWatch
	resting map[ledger.Owner]rest // resources that could not be watched
	linked  uint64                // revision of the reference resource (namespaces) at the last comparison
	running sync.WaitGroup
}

// rest is the pause after a failed watch. Successive failures of a resource have longer and longer
// pauses.
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
	lived    time.Duration // duration of the open watch
}

// NewKeeper returns a Keeper for the feeds that the function feeds returns.
func NewKeeper(u *feed.Upstream, metrics *Metrics, feeds func() []*Feed) *Keeper {
	return &Keeper{
		Upstream: u, feeds: feeds, metrics: metrics, probes: rate.NewLimiter(rate.Inf, 0),
		wanted: make(chan struct{}, 1), resting: map[ledger.Owner]rest{},
	}
}

// SetBudget limits the probes per second that all feeds together send for consistent reads. Unused
// budget of up to one second is saved, so a few readers never wait.
func (k *Keeper) SetBudget(perSecond int) {
	if perSecond <= 0 {
		k.probes.SetLimit(rate.Inf)
		return
	}
	k.probes.SetBurst(max(perSecond, 1+feed.SmallObjects/objectsPerProbe))
	k.probes.SetLimit(rate.Limit(perSecond))
}

// noteReader records a reader of a resource who needed more than a probe. proved is true if the
// ledger was enough. The ledger covers no scopes, so their readers do not need it.
func (k *Keeper) noteReader(of ledger.Owner, proved bool) {
	if of == (ledger.Owner{}) || !k.Options.Load().Ledger {
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

// over reports whether the ledger is no longer needed.
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

// askAside reads upstream's revision with a probe of the uncached resource. ok is false if there is
// no such resource, if the probe fails or if the revision is below known. The caller then probes
// the feed's own resource.
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

// Run maintains the ledger whenever there are enough readers, until ctx ends.
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

// keep runs the ledger until it is no longer needed.
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
			end, err := k.Health.Turns.Wait(ctx, func() servers.Urgency { return servers.Urgency{} })
			if err != nil {
				return
			}
			asking, done := context.WithTimeout(ctx, discovery.Timeout)
			now, err := k.Names.Local(asking, resources)
			done()
			end()
			if err == nil {
				resources, known = now, time.Now()
			} else if ctx.Err() == nil {
				k.Log.Debug("cannot list the ledger's resources", zap.Error(err))
			}
		}
		if k.fit(ctx, resources) {
			known = time.Time{} // the ended watch's resource may have moved to another server
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

// fit opens missing watches and closes unneeded watches. It reports whether a watch has ended
// early.
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
		o := ledger.OwnerOf(r.GVR.GroupResource())
		scopes := k.Options.Load().ScopesOf(r.GVR.GroupResource())
		narrowed := len(scopes) > 0 && !slices.ContainsFunc(scopes, object.Scope.Whole)
		if fed[o] || narrowed || k.Options.Load().Excludes(r.GVR) {
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
	maps.DeleteFunc(k.resting, func(o ledger.Owner, r rest) bool { return !wanted[o] && time.Now().After(r.until) })
	for o, w := range k.watches {
		if !wanted[o] {
			w.stop()
			delete(k.watches, o)
		}
	}
	return early
}

// ended handles a watch that has ended by itself, and decides when the resource's next watch opens.
// It reports whether the watch ended early.
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

// watch follows one watch that starts at the present revision.
func (k *Keeper) watch(ctx context.Context, w *ledgerWatch) (lived time.Duration, err error) {
	c := k.Client
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
	resp, err := c.GetCollection(ctx, AcceptMetadataEvents, ledgerVerb, w.resource, url.Values{
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

// read records the revisions that a watch shows until it ends. The watch starts at the revision
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

// ledgerVerb is the verb of the ledger's requests in metrics.
const ledgerVerb = "ledger"

// AcceptMetadataEvents requests watch events that contain only the metadata of objects.
const AcceptMetadataEvents = client.MimeProtobuf + ";as=PartialObjectMetadata;g=meta.k8s.io;v=v1"

// metadataOnly describes objects that are requested as metadata only.
var metadataOnly = object.Resource{
	GVR:  metav1.SchemeGroupVersion.WithResource("partialobjectmetadata"),
	Kind: "PartialObjectMetadata", Encoding: object.Protobuf, Namespaced: true,
}
