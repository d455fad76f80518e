package fresh

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"
	"golang.org/x/time/rate"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/watchproxy/watchproxy/watchcache/object"
	"github.com/watchproxy/watchproxy/watchcache/upstream/client"
	"github.com/watchproxy/watchproxy/watchcache/upstream/discovery"
	"github.com/watchproxy/watchproxy/watchcache/upstream/feed"
)

// ledgerReaders is the number of readers within Needed that start the ledger. Each must have needed
// more than a probe. That is one reader in two seconds.
const ledgerReaders = 30

// Keeper maintains the ledger while consistent readers benefit from it. It watches the metadata of
// all resources that upstream serves itself and that no feed watches. From each event, it keeps
// only the revision. So the ledger can prove without a list that a quiet cache is current, even
// while other resources are written.
//
// The leases of each apiserver cause a hole every ten seconds (see [Ledger]). If a hole blocks a
// cache, the keeper starts a run before the next reader comes.
//
// kube-apiserver answers consistent lists and probes from its watch cache once that cache has
// reached etcd's revision. If the resource itself is not written, kube-apiserver asks etcd for
// progress every 100 ms. So such a list or probe takes up to 100 ms. Events have no watch cache, so
// a probe of events returns immediately. The keeper therefore probes events. With 200 foreign
// writes a second, the list of a quiet collection takes some milliseconds. At the apiserver, many
// take 100 ms.
type Keeper struct {
	Ledger  Ledger
	shared  *feed.Shared
	feeds   Feeds
	metrics *Metrics
	probes  *rate.Limiter // the budget of all feeds, in probes

	mu struct {
		sync.Mutex
		since   time.Time // when the readers were first counted
		readers int       // how many have needed more than a probe since then
		last    time.Time // when the last one did
		proved  time.Time // when the ledger began or last proved something
		from    uint64    // the highest revision that it had recorded then; 0 if unknown
		resting time.Time // the ledger does not run before this time
	}

	moved   atomic.Bool // a watch has broken, so upstream may serve other resources
	running sync.WaitGroup

	// The following fields are used only by the goroutine of Run.
	watches map[feed.Owner]*ledgerWatch
	linked  uint64 // revision of the reference resource at the last comparison
}

// Feeds is the table of feeds.
type Feeds interface {
	// Started returns the feeds that have a cache.
	Started() []*Feed
}

// NewKeeper returns a Keeper for the feeds in a table.
func NewKeeper(u *feed.Shared, metrics *Metrics, feeds Feeds) *Keeper {
	k := &Keeper{
		shared: u, feeds: feeds, metrics: metrics, probes: rate.NewLimiter(rate.Inf, 0),
	}
	u.Ledger = &k.Ledger
	return k
}

// SetBudget limits the probes per second that all feeds together send for consistent reads. Their
// other requests cost as much as one probe or several. Unused budget of up to one second is saved,
// so a few readers never wait.
func (k *Keeper) SetBudget(perSecond int) {
	if perSecond <= 0 {
		k.probes.SetLimit(rate.Inf)
		return
	}
	k.probes.SetBurst(max(perSecond, 2+feed.SmallObjects/objectsPerProbe))
	k.probes.SetLimit(rate.Limit(perSecond))
}

// noteReader records a reader of a resource who needed more than a probe. proved is true if the
// ledger was enough. The ledger covers no scopes, so their readers do not need it.
func (k *Keeper) noteReader(of feed.Owner, proved bool) {
	if of == (feed.Owner{}) {
		return
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	now := time.Now()
	k.mu.last = now
	if proved {
		k.mu.proved, k.mu.from = now, 0
	}
	if now.Sub(k.mu.since) > Needed {
		k.mu.since, k.mu.readers = now, 0
	}
	k.mu.readers++
}

func (k *Keeper) wanted() bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	now := time.Now()
	return k.mu.readers >= ledgerReaders && now.Sub(k.mu.last) < Needed &&
		now.After(k.mu.resting) && k.shared.Options.Load().Ledger
}

// over reports whether nobody needs the ledger, or it proves nothing. With less than a write a
// second there is little to prove, but the keeper still closes holes of the apiservers' own leases.
func (k *Keeper) over() bool {
	_, highest := k.Ledger.Position(reference)
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.mu.from == 0 {
		k.mu.from = highest
	}
	proved := time.Since(k.mu.proved)
	quiet := highest != 0 && highest < k.mu.from+uint64(proved.Seconds())
	if proved > 2*Needed && !quiet {
		k.mu.resting = time.Now().Add(rest)
		const message = "ledger of revisions proves nothing; pausing it"
		k.shared.Log.Info(message, zap.Duration("for", rest))
		return true
	}
	return time.Since(k.mu.last) > Needed || !k.shared.Options.Load().Ledger
}

var events = object.Resource{
	GVR:  schema.GroupVersionResource{Version: "v1", Resource: "events"},
	Kind: "Event", Namespaced: true,
}

// askEvents reads upstream's revision with a probe of events, which upstream answers at once. If ok
// is false, the caller probes the feed's own resource, for which half of the time is left. ctx is
// canceled if the feed stops.
func (k *Keeper) askEvents(ctx context.Context, known uint64) (rv uint64, ok bool) {
	if !k.Ledger.Has(feed.OwnerOf(events.GVR.GroupResource())) {
		return 0, false
	}
	ctx, cancel := context.WithTimeout(ctx, feed.AskTimeout/2)
	defer cancel()
	p, err := k.shared.Client.Probe(ctx, "probe", &events)
	if errors.Is(err, context.Canceled) {
		return 0, false
	}
	if err != nil || p.RV < known {
		k.Ledger.Forget() // events may have moved to another etcd, or may take long to answer again
		return 0, false
	}
	return p.RV, true
}

// wentBack lets all feeds of whole resources read their states again, because upstream has lost a
// history that they have followed. Those of another etcd do so in vain.
func (k *Keeper) wentBack(reason error) {
	for _, f := range k.feeds.Started() {
		if f.Feed.Owner != (feed.Owner{}) {
			f.Feed.Main.Interrupt(reason)
		}
	}
}

// Run maintains the ledger whenever there are enough readers, until ctx ends.
func (k *Keeper) Run(ctx context.Context) {
	for client.Sleep(ctx, Every) {
		if k.wanted() {
			k.keep(ctx)
		}
	}
}

func (k *Keeper) keep(ctx context.Context) {
	ctx, cancel := context.WithCancel(ctx)
	k.watches = map[feed.Owner]*ledgerWatch{}
	k.Ledger.Begin()
	k.mu.Lock()
	k.mu.proved, k.mu.from = time.Now(), 0
	k.mu.Unlock()
	defer func() {
		cancel()
		k.running.Wait()
		k.Ledger.End()
	}()
	k.running.Go(func() { k.closeHoles(ctx) })
	var resources []object.Resource
	var known time.Time
	for !k.over() {
		if k.moved.Swap(false) {
			known = time.Time{}
		}
		if time.Since(known) > discovery.LocalAge {
			if now, err := k.local(ctx); err == nil {
				resources, known = now, time.Now()
			} else if ctx.Err() == nil {
				k.shared.Log.Debug("cannot list the ledger's resources", zap.Error(err))
			}
		}
		k.fit(ctx, resources)
		k.link(ctx)
		if !client.Sleep(ctx, Every) {
			return
		}
	}
}

func (k *Keeper) local(ctx context.Context) ([]object.Resource, error) {
	end, err := k.shared.Health.Turn(ctx)
	if err != nil {
		return nil, err
	}
	defer end()
	ctx, cancel := context.WithTimeout(ctx, discovery.Timeout)
	defer cancel()
	return k.shared.Names.Local(ctx)
}

// closeHoles begins runs for caches that the ledger cannot prove current: caches before a hole and,
// in a new era, all caches. So readers do not have to wait for these runs.
func (k *Keeper) closeHoles(ctx context.Context) {
	for client.Sleep(ctx, holeWait) {
		noted := k.Ledger.Wait()
		for _, f := range k.feeds.Started() {
			if !f.busy() {
				continue
			}
			at, unproved := k.unproved(f)
			if unproved && f.closing.CompareAndSwap(false, true) {
				k.running.Go(func() { k.closeHole(ctx, f, at) })
			}
		}
		select {
		case <-noted:
		case <-ctx.Done():
		}
	}
}

// closeHole brings a cache past the hole after at, unless the missing revision arrives in time. It
// then pauses for 20 times as long as the run took, so that a feed spends at most a 20th of the
// time in such runs.
func (k *Keeper) closeHole(ctx context.Context, f *Feed, at uint64) {
	defer f.closing.Store(false)
	client.Sleep(ctx, holeWait)
	if now, still := k.unproved(f); !still || now != at {
		return
	}
	began := time.Now()
	_, _ = f.share(ctx, true, 0)
	client.Sleep(ctx, max(Every, 20*time.Since(began)))
}

// unproved reports whether the ledger covers a feed but cannot prove its cache current. at is the
// revision before the hole. It is 0 if upstream itself has not shown the cache's state in this era
// yet.
func (k *Keeper) unproved(f *Feed) (at uint64, unproved bool) {
	if f.Cache().Resource().NoWatchCache || !k.Ledger.Has(f.Feed.Owner) {
		return 0, false
	}
	era, highest := k.Ledger.Position(f.Feed.Owner)
	if !f.Carries(era) {
		return 0, true
	}
	at = f.Cache().Stats().Newest
	return at, at < highest && !k.Ledger.Proves(era, f.Feed.Owner, at, highest)
}
