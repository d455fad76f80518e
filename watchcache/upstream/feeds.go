package upstream

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"
	"golang.org/x/time/rate"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/watchproxy/watchproxy/watchcache"
	"github.com/watchproxy/watchproxy/watchcache/object"
	"github.com/watchproxy/watchproxy/watchcache/upstream/client"
	"github.com/watchproxy/watchproxy/watchcache/upstream/discovery"
	"github.com/watchproxy/watchproxy/watchcache/upstream/ledger"
	"github.com/watchproxy/watchproxy/watchcache/upstream/servers"
)

// Options say what is cached and how much of it is kept.
type Options struct {
	// Excluded resources are never cached, in any version.
	Excluded []schema.GroupResource
	// Resources holds the options of single resources, in any version.
	Resources map[schema.GroupResource]ResourceOptions
	// Limits bound each resource's event log.
	Limits watchcache.Limits
	// IdleTimeout stops a feed after this long without a request or an open watch; 0 means never.
	IdleTimeout time.Duration
	// SelfCheck is how often each cache is compared with upstream; 0 means never.
	SelfCheck time.Duration
	// MaxProbes bounds the probes per second for consistent reads of all resources together;
	// 0 means no bound.
	MaxProbes int
	// Ledger watches the metadata of all resources while consistent readers profit from it.
	Ledger bool
	// Direct leaves a read to upstream if upstream answers sooner than the cache.
	Direct bool
}

// ResourceOptions are those of one resource.
type ResourceOptions struct {
	// ForwardConsistent leaves reads of the most recent state to upstream.
	ForwardConsistent bool
	// MaxAge lets reads of the most recent state see one that was current so long ago; 0: never.
	MaxAge time.Duration
	// Aggregated caches the resource even if an aggregated API serves it.
	Aggregated bool
}

var (
	// ErrExcluded says that configuration keeps a resource out of the cache.
	ErrExcluded  = errors.New("resource is excluded from caching")
	errStopped   = errors.New("feeds are stopped")
	errRedefined = errors.New("the definition of the resource has just changed")
)

// Feeds is the set of running feeds. A feed is started by the first request
// for its resource.
type Feeds struct {
	client  *client.Client
	servers *servers.Set
	options atomic.Pointer[Options]
	log     *zap.Logger
	metrics *Metrics
	ctx     context.Context
	cancel  context.CancelFunc
	running sync.WaitGroup
	store   *Store // nil if caches are not saved

	shedding sync.Mutex // see shed

	probes *rate.Limiter
	early  *rate.Limiter
	ledger *ledger.Ledger
	owners ledger.Owners
	keeper *keeper

	definitions discovery.Definitions
	names       *discovery.Discovery

	mu struct {
		sync.Mutex
		// All names in these maps are upstream's: discovery has listed them.
		feeds   map[feedKey]*Feed
		refused map[feedKey]refusal // at most refusalsMax
		// forbidden are the resources that upstream last refused with 403, at most refusalsMax.
		forbidden map[schema.GroupVersionResource]struct{}
		pressure  MemoryPressure
	}
}

// feedKey identifies a feed.
type feedKey struct {
	gvr      schema.GroupVersionResource
	encoding object.Encoding
}

func (f *Feed) key() feedKey { return feedKey{f.gvr, f.encoding} }

// isCustom tells whether a started feed has found its resource to be a custom one.
func (f *Feed) isCustom() bool {
	if f == nil {
		return false
	}
	select {
	case <-f.started:
		return f.cache != nil && f.cache.Resource().SelfDescribing
	default:
		return false
	}
}

func (k feedKey) sorted() []string {
	return []string{k.gvr.Group, k.gvr.Version, k.gvr.Resource, k.encoding.String()}
}

// NewFeeds returns an empty set. Stop ends it.
func NewFeeds(client *client.Client, servers *servers.Set, metrics *Metrics, options Options, log *zap.Logger) *Feeds {
	fs := &Feeds{ledger: &ledger.Ledger{}, client: client, servers: servers, log: log, metrics: metrics, probes: rate.NewLimiter(rate.Inf, 0), early: rate.NewLimiter(earlyRate, earlyBurst)}
	fs.options.Store(&options)
	fs.setBudget(options.MaxProbes)
	fs.ctx, fs.cancel = context.WithCancel(context.Background())
	fs.names = discovery.New(fs.ctx, client, &fs.running, log)
	fs.mu.feeds = map[feedKey]*Feed{}
	fs.mu.refused = map[feedKey]refusal{}
	fs.mu.forbidden = map[schema.GroupVersionResource]struct{}{}
	fs.definitions.Client, fs.definitions.Health, fs.definitions.Log, fs.definitions.Changed = client, servers.Health, log, fs.redefined
	fs.running.Go(func() { servers.Run(fs.ctx) })
	fs.running.Go(fs.retireIdle)
	fs.keeper = newKeeper(fs)
	fs.running.Go(func() { fs.keeper.run(fs.ctx) })
	if options.SelfCheck > 0 {
		fs.running.Go(func() { fs.checkAll(options.SelfCheck) })
	}
	return fs
}

// Stop ends all feeds and waits for them. Their caches end, too.
func (fs *Feeds) Stop() {
	fs.cancel()
	fs.running.Wait()
	if fs.store != nil {
		_ = fs.store.Close() // it was only read
	}
}

// Open returns the feed of a resource in an encoding. It starts the feed if need be,
// and waits for its cache to be filled until ctx ends. After any error, upstream has to answer
// the request; after [ErrNoEncoding] another encoding may do.
//
// A new feed begins its history at since, the resourceVersion that a client resumes from, if since
// is not 0 and upstream still has that history.
func (fs *Feeds) Open(ctx context.Context, gvr schema.GroupVersionResource, encoding object.Encoding, since uint64) (*Feed, error) {
	key := feedKey{gvr, encoding}
	f, err := fs.enter(ctx, key)
	if errors.Is(err, errRedefined) {
		// All its watches have just ended and come back at once. If they were forwarded,
		// they would stay with upstream.
		if !client.Sleep(ctx, settling) {
			return nil, fmt.Errorf("%w: %w", client.ErrUnavailable, err)
		}
		f, err = fs.enter(ctx, key)
	}
	if errors.Is(err, errRedefined) {
		err = fmt.Errorf("%w: %w", client.ErrUnavailable, err)
	}
	if err != nil {
		return nil, err
	}
	f.lastUsed.Store(watchcache.Moment(time.Now()))
	f.past.noteResumeRV(since)
	select {
	case <-f.started:
	case <-ctx.Done():
		return nil, fmt.Errorf("%w: start %s: %w", client.ErrUnavailable, f, ctx.Err())
	}
	if f.cache == nil {
		return nil, f.err
	}
	select {
	case <-f.settled:
	case <-ctx.Done():
		return nil, fmt.Errorf("%w: restore %s: %w", client.ErrUnavailable, f, ctx.Err())
	}
	if f.fresh.ctx.Err() != nil {
		return nil, fmt.Errorf("%w: %s ends", client.ErrUnavailable, f)
	}
	if _, err := f.cache.Snapshot(); err == nil {
		return f, nil
	}
	if _, lost := f.Lost(); lost {
		return nil, fmt.Errorf("%w: %s", client.ErrUnavailable, f)
	}
	if _, err := f.cache.WaitFresh(ctx, 0); err != nil {
		return nil, fmt.Errorf("%w: sync %s: %w", client.ErrUnavailable, f, err)
	}
	return f, nil
}

// Caches tells, without waiting, whether there may be a feed of a resource: false for
// resources that are excluded or were just found not to be cacheable or not to exist.
func (fs *Feeds) Caches(gvr schema.GroupVersionResource) bool {
	if fs.options.Load().excludes(feedKey{gvr: gvr}) {
		return false
	}
	fs.mu.Lock()
	defer fs.mu.Unlock()
	if fs.mu.feeds[feedKey{gvr: gvr}] == nil && fs.names.Lacks(gvr) {
		return false
	}
	r, ok := fs.mu.refused[feedKey{gvr: gvr}]
	return !ok || errors.Is(r.err, errRedefined) || !time.Now().Before(r.until)
}

// Joins tells, without waiting, whether a feed can answer a get of the most recent state at no cost
// to upstream: for a client that is known to be allowed, or within the resource's maxAge.
func (fs *Feeds) Joins(gvr schema.GroupVersionResource, encoding object.Encoding, allowed func() bool) bool {
	fs.mu.Lock()
	f := fs.mu.feeds[feedKey{gvr, encoding}]
	fs.mu.Unlock()
	if f == nil || !f.ServesConsistent() {
		return false
	}
	select {
	case <-f.settled:
		return f.cache != nil && f.joins(allowed)
	default:
		return false
	}
}

// Cache is the cache that the feed keeps in step with upstream.
func (f *Feed) Cache() *watchcache.Cache { return f.cache }

// Warnings are the Warning headers that upstream sends with every answer about
// the resource.
func (f *Feed) Warnings() []string { return f.warnings }

// enter returns the running feed of a resource or, if upstream serves it, starts one.
func (fs *Feeds) enter(ctx context.Context, key feedKey) (*Feed, error) {
	asked := time.Now()
	fs.mu.Lock()
	f, err := fs.lookLocked(key)
	fs.mu.Unlock()
	if f != nil || err != nil {
		return f, err
	}
	if err := fs.names.Serves(ctx, key.gvr); err != nil {
		return nil, err
	}
	return fs.feed(key, asked)
}

// feed returns the running feed of a resource or starts one for a client that asked at that time.
func (fs *Feeds) feed(key feedKey, asked time.Time) (*Feed, error) {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	if f, err := fs.lookLocked(key); f != nil || err != nil {
		return f, err
	}
	delete(fs.mu.refused, key)
	gvr := &key.gvr // a copy: the feed must not keep the request's strings
	gvr.Group, gvr.Version, gvr.Resource = strings.Clone(gvr.Group), strings.Clone(gvr.Version), strings.Clone(gvr.Resource)
	f := fs.newFeed(key)
	f.asked = asked
	fs.mu.feeds[key] = f
	fs.running.Go(func() { fs.own(f) })
	fs.running.Go(func() { fs.reconfigure(f) })
	return f, nil
}

// lookLocked returns the running feed of a resource, or the reason why it has none; nil and no
// error if it could be started.
func (fs *Feeds) lookLocked(key feedKey) (*Feed, error) {
	if fs.options.Load().excludes(key) {
		return nil, ErrExcluded
	}
	if f := fs.mu.feeds[key]; f != nil {
		return f, nil
	}
	if fs.ctx.Err() != nil {
		return nil, errStopped
	}
	if key.encoding == object.Protobuf && fs.mu.feeds[feedKey{gvr: key.gvr}].isCustom() {
		return nil, fmt.Errorf("%w: %s is a custom one", client.ErrNoEncoding, key.gvr) // not asked
	}
	if r, ok := fs.mu.refused[key]; ok && time.Now().Before(r.until) {
		return nil, r.err
	}
	if fs.mu.pressure.NoNewFeeds {
		return nil, ErrNoMemory
	}
	return nil, nil
}

func (fs *Feeds) newFeed(key feedKey) *Feed {
	gvr, options := key.gvr, fs.options.Load()
	f := &Feed{
		gvr: gvr, encoding: key.encoding,
		client: fs.client, names: fs.names, health: fs.servers.Health, probes: fs.probes, early: fs.early, keeper: fs.keeper, limits: fs.mu.pressure.limits(options.Limits), metrics: fs.metrics,
		log: fs.log.With(zap.String("group", gvr.Group), zap.String("version", gvr.Version), zap.String("resource", gvr.Resource),
			zap.Stringer("encoding", key.encoding)),
		defined: fs.defined,
		store:   fs.store, settled: make(chan struct{}),
		started: make(chan struct{}), done: make(chan struct{}),
	}
	f.setOptions(options.Resources[gvr.GroupResource()])
	if !f.options.Load().Aggregated { // an aggregated API may show another resource's objects
		f.owner = fs.owners.Of(gvr.GroupResource())
	}
	f.lastUsed.Store(watchcache.Moment(time.Now()))
	return f
}

// own runs a feed and removes it when it ends.
func (fs *Feeds) own(f *Feed) {
	ctx, cancel := context.WithCancel(fs.ctx)
	defer cancel()
	fs.mu.Lock()
	f.stop = cancel
	fs.mu.Unlock()
	f.run(ctx)

	fs.mu.Lock()
	defer fs.mu.Unlock()
	if fs.mu.feeds[f.key()] == f {
		delete(fs.mu.feeds, f.key())
	}
	if ctx.Err() == nil {
		pause := pauseAfter(f.err)
		if notForUs(f.err) {
			fs.forgetSaved(f.key())
		}
		level := zap.InfoLevel
		if forbidden := apierrors.IsForbidden(f.err); fs.knownForbiddenLocked(f.gvr, forbidden) && forbidden {
			level = zap.DebugLevel
		}
		f.log.Log(level, "not cached; requests are forwarded", zap.Error(f.err), zap.Duration("for", pause))
		fs.refuseLocked(f.key(), f.err, pause)
	}
}

// defined starts to follow the definitions for a feed of a custom resource, and
// abandons the feed if its definition has changed already.
func (fs *Feeds) defined(f *Feed) {
	fs.definitions.Begin.Do(func() { fs.running.Go(func() { fs.definitions.Run(fs.ctx) }) })
	if fs.definitions.Outdated(discovery.DefinitionName(f.gvr), f.definition) {
		fs.abandon(f)
	}
}

// redefined abandons the feeds of a custom resource whose definition changed.
func (fs *Feeds) redefined(name string, now discovery.Version) {
	for _, f := range fs.list() {
		if f.custom() && discovery.DefinitionName(f.gvr) == name && f.definition != now {
			f.log.Info("definition changed", zap.Int64("generation", now.Generation))
			fs.abandon(f)
		}
	}
}

func (fs *Feeds) abandon(f *Feed) { fs.giveUp(f, errRedefined, settling) }

// giveUp ends a feed at once and remembers the reason for a while.
func (fs *Feeds) giveUp(f *Feed, reason error, pause time.Duration) {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	f.abandon(f.stop)
	if fs.mu.feeds[f.key()] == f {
		delete(fs.mu.feeds, f.key())
		fs.refuseLocked(f.key(), reason, pause)
	}
}

// settling is how long requests for a custom resource wait after its definition
// changed: upstream needs a moment to serve the new version.
const settling = 2 * time.Second

// retireIdle stops feeds that nobody has used for IdleTimeout.
func (fs *Feeds) retireIdle() {
	const often = time.Minute
	for {
		idle := fs.options.Load().IdleTimeout
		pause := often
		if idle > 0 {
			pause = min(often, idle/10)
		}
		if !client.Sleep(fs.ctx, pause) {
			return
		}
		if idle <= 0 {
			continue
		}
		for _, f := range fs.list() {
			if f.cache == nil || f.cache.Stats().Cursors > 0 {
				f.lastUsed.Store(watchcache.Moment(time.Now()))
			}
			if watchcache.SinceMoment(f.lastUsed.Load()) > idle {
				f.log.Info("stopping idle feed")
				fs.mu.Lock()
				f.stop()
				fs.mu.Unlock()
				<-f.done
				fs.forgetSaved(f.key())
			}
		}
	}
}

// list returns the started feeds, ordered by group, version, resource and encoding.
func (fs *Feeds) list() []*Feed {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	feeds := make([]*Feed, 0, len(fs.mu.feeds))
	for _, f := range fs.mu.feeds {
		select {
		case <-f.started:
			if f.cache != nil {
				feeds = append(feeds, f)
			}
		default:
		}
	}
	slices.SortFunc(feeds, func(a, b *Feed) int {
		return slices.Compare(a.key().sorted(), b.key().sorted())
	})
	return feeds
}
