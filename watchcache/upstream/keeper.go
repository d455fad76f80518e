package upstream

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
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/version"

	"github.com/watchproxy/watchproxy/watchcache"
)

const (
	// ledgerIdle is for how long the ledger is kept after a reader had a use for it.
	ledgerIdle = time.Minute
	// ledgerEvery is how often its watches are made to fit what upstream serves, linkEvery how often
	// evidence is looked for while some is missing.
	ledgerEvery = 2 * time.Second
	linkEvery   = 250 * time.Millisecond
	// ledgerDiscovery is how old the lists of resources may be that it is made for.
	ledgerDiscovery = time.Minute
	// ledgerRefused is how long a resource is left alone that may not be watched.
	ledgerRefused = 5 * time.Minute
	// ledgerAgainMost is the longest pause before a broken watch is opened again.
	ledgerAgainMost = 30 * time.Second
	// holeLooks is how often feeds are looked at for holes, and how old these are when something is done.
	holeLooks = 20 * time.Millisecond
)

// keeper keeps the ledger while consistent readers have a use for it: it watches, beside the feeds,
// the metadata of all other resources that upstream serves itself, and keeps of that their revisions
// alone. So a quiet cache is proved to be the present state though others write.
type keeper struct {
	feeds  *Feeds
	ledger *ledger
	log    *zap.Logger
	wanted chan struct{}
	// uncached is a resource that upstream keeps no cache of, if it is in the ledger, else nil. Asked for
	// another, upstream waits until its cache of that is up to date: where only others write, for up to
	// 100 ms.
	uncached atomic.Pointer[watchcache.Resource]

	mu struct {
		sync.Mutex
		last time.Time // when it was wanted
	}

	// What its own goroutine knows.
	watches map[owner]*ledgerWatch
	refused map[owner]time.Time // until when
	linked  uint64              // the reference's revision of the last evidence
	running sync.WaitGroup
}

// ledgerWatch is a watch that is kept for the revisions alone.
type ledgerWatch struct {
	resource *watchcache.Resource
	owner    owner
	stop     context.CancelFunc
	refused  chan struct{} // closed if it may not be
}

func newKeeper(feeds *Feeds) *keeper {
	return &keeper{feeds: feeds, ledger: &feeds.ledger, log: feeds.log, wanted: make(chan struct{}, 1)}
}

// want notes that a reader had to wait for more than a probe.
func (k *keeper) want() {
	if !k.feeds.options.Load().Ledger {
		return
	}
	k.mu.Lock()
	k.mu.last = time.Now()
	k.mu.Unlock()
	select {
	case k.wanted <- struct{}{}:
	default:
	}
}

func (k *keeper) idle() bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return time.Since(k.mu.last) > ledgerIdle || !k.feeds.options.Load().Ledger
}

// proves tells whether the ledger may prove something for a resource.
func (k *keeper) proves(o owner) bool { return k.ledger.has(o) }

// aside is what to ask for upstream's revision in place of a resource, and whether it is another.
func (k *keeper) aside(of *watchcache.Resource) (*watchcache.Resource, bool) {
	if uncached := k.uncached.Load(); uncached != nil {
		return uncached, true
	}
	return of, false
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
	k.watches, k.refused = map[owner]*ledgerWatch{}, map[owner]time.Time{}
	k.ledger.begin()
	defer func() {
		cancel()
		k.running.Wait()
		k.uncached.Store(nil)
		k.ledger.end()
	}()
	k.running.Go(func() { k.closeHoles(ctx) })
	var resources []watchcache.Resource
	var known time.Time
	for !k.idle() {
		if time.Since(known) > ledgerDiscovery {
			now, err := k.feeds.names.local(ctx)
			if err == nil {
				resources, known = now, time.Now()
			} else if ctx.Err() == nil {
				k.log.Debug("resources of the ledger are not known", zap.Error(err))
			}
		}
		k.fit(ctx, resources)
		pause := ledgerEvery
		if k.link(ctx) {
			pause = linkEvery
		}
		k.choose()
		if !sleep(ctx, pause) {
			return
		}
	}
}

// fit watches what is to be watched and is not yet.
func (k *keeper) fit(ctx context.Context, resources []watchcache.Resource) {
	fed := map[owner]bool{}
	for _, f := range k.feeds.list() {
		if f.cache.Stats().Ready {
			fed[f.owner] = true
		}
	}
	wanted := map[owner]bool{}
	for i := range resources {
		r := &resources[i]
		o := k.feeds.owners.of(r.GVR.GroupResource())
		if o == 0 || fed[o] || k.feeds.options.Load().excludes(feedKey{gvr: r.GVR}) {
			continue
		}
		wanted[o] = true
		if k.watches[o] != nil || time.Now().Before(k.refused[o]) {
			continue
		}
		watching, stop := context.WithCancel(ctx)
		w := &ledgerWatch{resource: r, owner: o, stop: stop, refused: make(chan struct{})}
		k.watches[o] = w
		k.running.Go(func() { k.follow(watching, w) })
	}
	for o, w := range k.watches {
		over := !wanted[o]
		select {
		case <-w.refused:
			over = true
			k.refused[o] = time.Now().Add(ledgerRefused)
		default:
		}
		if over {
			w.stop()
			delete(k.watches, o)
		}
	}
}

// follow watches a resource until ctx ends or it may not.
func (k *keeper) follow(ctx context.Context, w *ledgerWatch) {
	for pause := time.Second; ; pause = min(2*pause, ledgerAgainMost) {
		began := time.Now()
		opened, err := k.watch(ctx, w)
		if ctx.Err() != nil {
			return
		}
		if opened && (err != nil || time.Since(began) < watchLife) {
			k.ledger.forget() // what comes next may be of a restored etcd
		}
		if opened {
			pause = time.Second
		}
		if !opened && answered(err) && !apierrors.IsTooManyRequests(err) && !apierrors.IsResourceExpired(err) {
			k.log.Debug("not in the ledger", zap.Stringer("resource", w.resource.GVR), zap.Error(err))
			close(w.refused)
			return
		}
		if !sleep(ctx, pause) {
			return
		}
	}
}

// watch follows one watch from the present on.
func (k *keeper) watch(ctx context.Context, w *ledgerWatch) (opened bool, err error) {
	client, gvr := k.feeds.client, w.resource.GVR
	asking, cancel := context.WithTimeout(ctx, askTimeout)
	p, err := client.probe(asking, w.resource)
	cancel()
	if err != nil {
		return false, err
	}
	resp, err := client.getAs(ctx, acceptMetadataEvents, "ledger", gvr, resourcePath(gvr, ""), url.Values{
		"watch": {"true"}, "allowWatchBookmarks": {"true"}, "resourceVersion": {strconv.FormatUint(p.rv, 10)},
	})
	if err != nil {
		return false, err
	}
	defer resp.Body.Close() //nolint:errcheck // its end was read, or does not matter
	s := newProtoStream(resp.Body, &metadataOnly)
	for used := (uses{at: p.rv}); ; {
		e, err := s.next()
		switch {
		case errors.Is(err, io.EOF):
			return true, nil
		case err != nil:
			return true, err
		case e.kind == "ERROR":
			return true, eventError(e, watchcache.Protobuf)
		}
		state, err := metadataOnly.ParseState(e.object)
		switch {
		case err != nil:
			return true, err
		case e.kind == "BOOKMARK":
			used.reached(state.ResourceVersion)
		default:
			used.event(state.ResourceVersion)
			k.feeds.uses(w.owner, used.take()...)
		}
	}
}

// acceptMetadataEvents asks for no more than the metadata of what a watch shows.
const acceptMetadataEvents = mimeProtobuf + ";as=PartialObjectMetadata;g=meta.k8s.io;v=v1"

// metadataOnly is what every object is when only its metadata is asked for.
var metadataOnly = watchcache.Resource{
	GVR:  metav1.SchemeGroupVersion.WithResource("partialobjectmetadata"),
	Kind: "PartialObjectMetadata", Encoding: watchcache.Protobuf, Namespaced: true,
}

// uses notes that a resource has used revisions.
func (fs *Feeds) uses(o owner, rvs ...uint64) {
	shared := fs.ledger.note(o, rvs...)
	if shared == nil {
		return
	}
	fs.log.Warn("two resources have used one revision: they are not stored together, so neither is in the ledger",
		zap.Stringers("resources", fs.owners.names(shared.one, shared.other)), zap.Uint64("resourceVersion", shared.rv))
}

// shown are the resources of which something is watched.
func (k *keeper) shown() map[owner]*watchcache.Resource {
	all := map[owner]*watchcache.Resource{}
	for _, f := range k.feeds.list() {
		if f.owner != 0 {
			all[f.owner] = f.cache.Resource()
		}
	}
	for o, w := range k.watches {
		all[o] = w.resource
	}
	return all
}

// choose looks for a resource to ask for upstream's revision.
func (k *keeper) choose() {
	for o, r := range k.shown() {
		if noWatchCache(r.GVR) && k.ledger.has(o) {
			k.uncached.Store(r)
			return
		}
	}
	k.uncached.Store(nil)
}

// link looks for evidence of who is in one etcd, among those that are watched. It returns whether
// some is still missing. While nobody writes there is none to be had.
func (k *keeper) link(ctx context.Context) (missing bool) {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	all := k.shown()
	reference := k.feeds.owners.of(schema.GroupResource{Resource: "namespaces"})
	undecided := slices.DeleteFunc(slices.Sorted(maps.Keys(all)), func(o owner) bool { return !k.ledger.undecided(o) })
	if len(undecided) == 0 || all[reference] == nil {
		return false
	}
	var readings []reading
	order := slices.DeleteFunc(undecided, func(o owner) bool { return o == reference })
	for i, o := range append(append([]owner{reference}, order...), reference) {
		p, err := k.feeds.client.probe(ctx, all[o])
		switch {
		case err == nil:
			readings = append(readings, reading{o, p.rv})
		case i == 0 || i > len(order):
			return true
		}
		if i == 0 && p.rv <= k.linked {
			return true
		}
	}
	k.linked = readings[0].rv
	for _, o := range k.ledger.attest(readings) {
		k.log.Warn("a resource is not stored with the others: it is not in the ledger", zap.Stringers("resource", k.feeds.owners.names(o)))
	}
	return true
}

// closeHoles brings caches beyond revisions that nobody shows, before a reader has to wait for that.
func (k *keeper) closeHoles(ctx context.Context) {
	for sleep(ctx, holeLooks) {
		for _, f := range k.feeds.list() {
			era, highest := k.ledger.standing(f.owner)
			at := f.cache.Stats().Newest
			if at >= highest || !f.fresh.busy() || k.ledger.proves(era, f.owner, at, highest) {
				continue
			}
			if f.fresh.closing.CompareAndSwap(false, true) {
				k.running.Go(func() {
					defer f.fresh.closing.Store(false)
					sleep(ctx, holeLooks) // it may be on its way
					if at == f.cache.Stats().Newest && !k.ledger.proves(era, f.owner, at, highest) {
						_, _ = f.shareRun(ctx) // as a reader would
					}
				})
			}
		}
	}
}

// local are the resources that upstream serves itself and that can be watched, each in one version.
func (d *discovery) local(ctx context.Context) (all []watchcache.Resource, err error) {
	groups, err := d.read(ctx, schema.GroupVersion{}, time.Now().Add(-ledgerDiscovery))
	if err != nil {
		return nil, err
	}
	versions := slices.SortedFunc(maps.Keys(groups.versions), func(a, b schema.GroupVersion) int {
		return version.CompareKubeAwareVersionStrings(b.Version, a.Version)
	})
	seen := map[schema.GroupResource]bool{}
	for _, gv := range append([]schema.GroupVersion{{Version: "v1"}}, versions...) {
		doc, err := d.read(ctx, gv, time.Now().Add(-ledgerDiscovery))
		if err != nil {
			continue // it may be an aggregated API that is away
		}
		checked := false
		for _, r := range doc.resources {
			gvr := gv.WithResource(r.Name)
			if seen[gvr.GroupResource()] || !slices.Contains(r.Verbs, "list") || !slices.Contains(r.Verbs, "watch") {
				continue
			}
			if !checked {
				if _, err := d.checkLocal(ctx, gvr); err != nil {
					break
				}
				checked = true
			}
			seen[gvr.GroupResource()] = true
			all = append(all, watchcache.Resource{GVR: gvr, Kind: r.Kind, Namespaced: r.Namespaced})
		}
	}
	return all, ctx.Err()
}
