package upstream

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
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/watchproxy/watchproxy/watchcache"
	"github.com/watchproxy/watchproxy/watchcache/object"
	"github.com/watchproxy/watchproxy/watchcache/upstream/client"
	"github.com/watchproxy/watchproxy/watchcache/upstream/discovery"
	"github.com/watchproxy/watchproxy/watchcache/upstream/ledger"
	"github.com/watchproxy/watchproxy/watchcache/upstream/servers"
)

const (
	// ledgerReaders is how many readers have to have a use for the ledger within ledgerWithin before it
	// is kept. It is kept for ledgerIdle after the last, unless it has proved nothing for
	// ledgerUseless; then it costs more than it saves, and is left for ledgerRest.
	ledgerReaders = 5
	ledgerWithin  = 10 * time.Second
	ledgerIdle    = time.Minute
	ledgerUseless = 2 * time.Minute
	ledgerRest    = 10 * time.Minute
	// ledgerEvery is how often its watches are made to fit what upstream serves, linkEvery how often
	// evidence is looked for while some is missing.
	ledgerEvery = 2 * time.Second
	linkEvery   = 250 * time.Millisecond
	// ledgerRefused is how long a resource is left alone that may not be watched.
	ledgerRefused = 5 * time.Minute
	// ledgerAgain and ledgerAgainMost bound the pause before a broken watch is opened again.
	ledgerAgain     = time.Second
	ledgerAgainMost = 30 * time.Second
	// ledgerBuffer is how much of a watch is read at once, in bytes.
	ledgerBuffer = 4 << 10
	// linkMost is how many resources are held against the reference at a time.
	linkMost = 16
	// holeLooks is how often feeds are looked at for holes, and how old these are when something is
	// done. To bring a cache beyond one may take a 20th of the time, and no more.
	holeLooks = 20 * time.Millisecond
	holeRest  = 20
)

// keeper keeps the ledger while consistent readers have a use for it: it watches, beside the feeds,
// the metadata of all other resources that upstream serves itself, and keeps of that their revisions
// alone. So a quiet cache is proved to be the present state though others write.
type keeper struct {
	feeds  *Feeds
	ledger *ledger.Ledger
	log    *zap.Logger
	wanted chan struct{}
	// uncached is a resource that upstream keeps no cache of, if it is in the ledger, else nil. Asked for
	// another, upstream waits until its cache of that is up to date: where only others write, for up to
	// 100 ms.
	uncached atomic.Pointer[ledgerWatch]

	mu struct {
		sync.Mutex
		last    time.Time                // when it was wanted
		wanted  [ledgerReaders]time.Time // and the times before, by turns
		next    int
		proved  time.Time // when it proved something, or was begun
		resting time.Time // until when
	}

	// What its own goroutine knows.
	watches map[ledger.Owner]*ledgerWatch
	resting map[ledger.Owner]rest // those that could not be watched
	linked  uint64                // the reference's revision of the last evidence
	running sync.WaitGroup
}

// rest is how long a resource is left alone, more each time.
type rest struct {
	until time.Time
	pause time.Duration
}

// ledgerWatch is a watch that is kept for the revisions alone.
type ledgerWatch struct {
	resource *object.Resource
	owner    ledger.Owner
	stop     context.CancelFunc
	over     chan struct{} // closed when it has ended, for err
	err      error
	lived    time.Duration // since it was opened
}

func newKeeper(feeds *Feeds) *keeper {
	return &keeper{feeds: feeds, ledger: feeds.ledger, log: feeds.log, wanted: make(chan struct{}, 1), resting: map[ledger.Owner]rest{}}
}

// noteReader notes that a reader had to wait for more than a probe, and whether the ledger spared it more.
func (k *keeper) noteReader(proved bool) {
	if !k.feeds.options.Load().Ledger {
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

// over tells whether the ledger need not be kept any more.
func (k *keeper) over() bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	if time.Since(k.mu.proved) > ledgerUseless {
		k.mu.resting = time.Now().Add(ledgerRest)
		k.log.Info("the ledger of revisions proves nothing; it rests", zap.Duration("for", ledgerRest))
		return true
	}
	return time.Since(k.mu.last) > ledgerIdle || !k.feeds.options.Load().Ledger
}

// askAside asks upstream for its revision by a resource that it has no cache of. It is false if there
// is none, and if the answer is not above what is known: then the feed's own resource has to tell.
func (k *keeper) askAside(ctx context.Context, known uint64) (rv uint64, ok bool) {
	w := k.uncached.Load()
	if w == nil || !k.ledger.Has(w.owner) {
		return 0, false
	}
	done := k.feeds.metrics.spend("probe")
	p, err := k.feeds.client.Probe(ctx, w.resource)
	done()
	if err != nil || p.RV < known {
		k.uncached.CompareAndSwap(w, nil)
		k.ledger.Forget() // it may not be in the same etcd any more
		return 0, false
	}
	return p.RV, true
}

// run keeps the ledger whenever it is wanted, until ctx ends.
func (k *keeper) run(ctx context.Context) {
	for {
		select {
		case <-k.wanted:
			k.keep(ctx)
		case <-ctx.Done():
			return
		}
	}
}

// keep keeps the ledger until nobody has wanted it for a while.
func (k *keeper) keep(ctx context.Context) {
	ctx, cancel := context.WithCancel(ctx)
	k.watches = map[ledger.Owner]*ledgerWatch{}
	k.ledger.Begin()
	k.mu.Lock()
	k.mu.proved = time.Now()
	k.mu.Unlock()
	defer func() {
		cancel()
		k.running.Wait()
		k.uncached.Store(nil)
		k.ledger.End()
	}()
	k.running.Go(func() { k.closeHoles(ctx) })
	var resources []object.Resource
	var known time.Time
	for !k.over() {
		if time.Since(known) > discovery.LocalAge {
			asking, done := context.WithTimeout(ctx, discovery.Timeout)
			now, err := k.feeds.names.Local(asking, resources)
			done()
			if err == nil {
				resources, known = now, time.Now()
			} else if ctx.Err() == nil {
				k.log.Debug("resources of the ledger are not known", zap.Error(err))
			}
		}
		if k.fit(ctx, resources) {
			known = time.Time{} // what has ended early may be served by somebody else now
		}
		pause := ledgerEvery
		if k.link(ctx) {
			pause = linkEvery
		}
		k.choose()
		if !client.Sleep(ctx, pause) {
			return
		}
	}
}

// fit watches what is to be watched and is not yet. It returns whether a watch has ended early.
func (k *keeper) fit(ctx context.Context, resources []object.Resource) (early bool) {
	for o, w := range k.watches {
		select {
		case <-w.over:
			early = k.ended(w) || early
			delete(k.watches, o)
		default:
		}
	}
	fed := map[ledger.Owner]bool{}
	for _, f := range k.feeds.list() {
		if f.cache.Stats().Ready {
			fed[f.owner] = true
		}
	}
	wanted := map[ledger.Owner]bool{}
	for i := range resources {
		r := &resources[i]
		o := k.feeds.owners.Of(r.GVR.GroupResource())
		if o == 0 || fed[o] || k.feeds.options.Load().excludes(feedKey{gvr: r.GVR}) {
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

// ended decides when a resource is watched again whose watch has ended by itself. It returns whether
// that was before its time.
func (k *keeper) ended(w *ledgerWatch) (early bool) {
	w.stop()
	opened := w.lived > 0
	if opened && w.err == nil && w.lived >= watchLife {
		return false
	}
	if opened {
		k.ledger.Forget() // what comes next may be of a restored etcd
	}
	pause := min(max(2*k.resting[w.owner].pause, ledgerAgain), ledgerAgainMost)
	switch {
	case client.Answered(w.err) && !client.Doubtful(w.err) && !apierrors.IsTooManyRequests(w.err) && !apierrors.IsResourceExpired(w.err):
		pause = ledgerRefused
	case w.lived > ledgerAgainMost:
		pause = ledgerAgain
	}
	k.resting[w.owner] = rest{time.Now().Add(pause), pause}
	k.log.Debug("a watch of the ledger has ended", zap.Stringer("resource", w.resource.GVR), zap.Duration("again", pause), zap.Error(w.err))
	return opened
}

// watch follows one watch from the present on.
func (k *keeper) watch(ctx context.Context, w *ledgerWatch) (lived time.Duration, err error) {
	c, gvr := k.feeds.client, w.resource.GVR
	end, err := k.feeds.servers.Health.Turns.Wait(ctx, func() servers.Urgency { return servers.Urgency{} })
	if err != nil {
		return 0, err
	}
	defer end()
	if err := k.feeds.probes.Wait(ctx); err != nil {
		return 0, err
	}
	asking, cancel := context.WithTimeout(ctx, askTimeout)
	p, err := c.ProbeAs(asking, ledgerVerb, w.resource)
	cancel()
	if err != nil {
		return 0, err
	}
	resp, err := c.GetAs(ctx, acceptMetadataEvents, ledgerVerb, gvr, client.ResourcePath(gvr, ""), url.Values{
		"watch": {"true"}, "allowWatchBookmarks": {"true"}, "resourceVersion": {strconv.FormatUint(p.RV, 10)},
	})
	if err != nil {
		return 0, err
	}
	defer resp.Body.Close() //nolint:errcheck // its end was read, or does not matter
	end()
	opened := time.Now()
	err = k.read(client.NewProtoStream(resp.Body, &metadataOnly, ledgerBuffer), w.owner, p.RV)
	return max(time.Since(opened), 1), err
}

// read notes what a watch from a revision on shows, until its end.
func (k *keeper) read(s client.Stream, o ledger.Owner, from uint64) error {
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
			k.feeds.uses(o, used.Take()...)
		}
	}
}

// ledgerVerb is what the ledger's requests are counted as.
const ledgerVerb = "ledger"

// acceptMetadataEvents asks for no more than the metadata of what a watch shows.
const acceptMetadataEvents = client.MimeProtobuf + ";as=PartialObjectMetadata;g=meta.k8s.io;v=v1"

// metadataOnly is what every object is when only its metadata is asked for.
var metadataOnly = object.Resource{
	GVR:  metav1.SchemeGroupVersion.WithResource("partialobjectmetadata"),
	Kind: "PartialObjectMetadata", Encoding: object.Protobuf, Namespaced: true,
}

// uses notes that a resource has used revisions.
func (fs *Feeds) uses(o ledger.Owner, rvs ...uint64) {
	shared := fs.ledger.Note(o, rvs...)
	if shared == nil {
		return
	}
	fs.log.Warn("two resources have used one revision, so the ledger begins anew; after the second time they stay out of it",
		zap.Stringers("resources", fs.owners.Names(shared.One, shared.Other)), zap.Uint64("resourceVersion", shared.RV))
}

// closeHoles has upstream show the state of caches for which nothing is proved, before a reader has to wait for
// that: those before a revision that nobody shows, and all in a new era.
func (k *keeper) closeHoles(ctx context.Context) {
	for client.Sleep(ctx, holeLooks) {
		for _, f := range k.feeds.list() {
			at, unproved := k.unproved(f)
			if !unproved || !f.fresh.busy() || watchcache.Moment(time.Now()) < f.fresh.rested.Load() {
				continue
			}
			if f.fresh.closing.CompareAndSwap(false, true) {
				k.running.Go(func() {
					defer f.fresh.closing.Store(false)
					client.Sleep(ctx, holeLooks) // it may be on its way
					if now, unproved := k.unproved(f); unproved && now == at {
						began := time.Now()
						_, _ = f.shareRun(ctx, 0) // as a reader would
						f.fresh.rested.Store(watchcache.Moment(time.Now().Add(holeRest * time.Since(began))))
					}
				})
			}
		}
	}
}

// unproved tells whether the ledger cannot prove that a cache is up to date, though it may: the cache is at a
// state before a revision that nobody shows, or 0 if it is all of the era's.
func (k *keeper) unproved(f *Feed) (at uint64, unproved bool) {
	if f.cache.Resource().NoWatchCache || !k.ledger.Has(f.owner) {
		return 0, false
	}
	era, highest := k.ledger.Standing(f.owner)
	if !f.carries(era) {
		return 0, true
	}
	at = f.cache.Stats().Newest
	return at, at < highest && !k.ledger.Proves(era, f.owner, at, highest)
}
