package upstream

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"sync"
	"time"

	"go.uber.org/zap"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/watchproxy/watchproxy/watchcache"
	"github.com/watchproxy/watchproxy/watchcache/object"
	"github.com/watchproxy/watchproxy/watchcache/upstream/client"
	"github.com/watchproxy/watchproxy/watchcache/upstream/discovery"
	"github.com/watchproxy/watchproxy/watchcache/upstream/feed"
	"github.com/watchproxy/watchproxy/watchcache/upstream/fresh"
	"github.com/watchproxy/watchproxy/watchcache/upstream/servers"
	"github.com/watchproxy/watchproxy/watchcache/upstream/store"
)

var (
	// ErrExcluded says that the configuration excludes a resource from caching.
	ErrExcluded  = errors.New("resource is excluded from caching")
	errStopped   = errors.New("feeds are stopped")
	errRedefined = fmt.Errorf("%w: the definition of the resource has just changed", watchcache.ErrNotReady)
)

// Feeds is the set of running feeds. The first request for a resource starts its feed.
type Feeds struct {
	*feed.Upstream
	servers *servers.Set
	metrics *Metrics
	ctx     context.Context
	cancel  context.CancelFunc
	running sync.WaitGroup
	keeper  *fresh.Keeper

	shedding sync.Mutex // see shed

	definitions discovery.Definitions

	mu struct {
		sync.Mutex
		// All names in these maps have been listed by discovery, so clients cannot add any.
		feeds   map[store.Key]*fresh.Feed
		refused map[store.Key]refusal // at most refusalsMax
		// forbidden are the resources that upstream last refused with 403, at most refusalsMax.
		forbidden map[schema.GroupVersionResource]struct{}
		pressure  MemoryPressure
	}
}

// NewFeeds returns an empty set. Stop ends it.
func NewFeeds(client *client.Client, servers *servers.Set, metrics *Metrics, options feed.Options, log *zap.Logger) *Feeds {
	fs := &Feeds{servers: servers, metrics: metrics}
	fs.ctx, fs.cancel = context.WithCancel(context.Background())
	fs.Upstream = &feed.Upstream{
		Client: client, Health: servers.Health, Names: discovery.New(fs.ctx, client, &fs.running, log), Metrics: metrics.feed, Log: log,
	}
	fs.Options.Store(&options)
	fs.keeper = fresh.NewKeeper(fs.Upstream, metrics.fresh, fs.list)
	fs.keeper.SetBudget(options.MaxProbes)
	fs.mu.feeds = map[store.Key]*fresh.Feed{}
	fs.mu.refused = map[store.Key]refusal{}
	fs.mu.forbidden = map[schema.GroupVersionResource]struct{}{}
	fs.definitions.Client, fs.definitions.Health, fs.definitions.Log, fs.definitions.Changed = client, servers.Health, log, fs.redefined
	fs.running.Go(func() { servers.Run(fs.ctx) })
	fs.running.Go(fs.retireIdle)
	fs.running.Go(func() { fs.keeper.Run(fs.ctx) })
	if options.SelfCheck > 0 {
		fs.running.Go(func() { fs.checkAll(options.SelfCheck) })
	}
	return fs
}

// Stop ends all feeds and waits for them. Their caches end, too.
func (fs *Feeds) Stop() {
	fs.cancel()
	fs.running.Wait()
	if fs.Store != nil {
		_ = fs.Store.Close() // it was only read from
	}
}

// Open returns the feed of a resource in an encoding. It starts the feed if necessary, and waits
// until the cache is filled or ctx ends. If Open returns an error, upstream has to answer the
// request; after [object.ErrNoEncoding], another encoding may work.
//
// since is the resourceVersion that a client resumes from, or 0. A new feed begins its history
// there if upstream still has that history.
func (fs *Feeds) Open(ctx context.Context, gvr schema.GroupVersionResource, encoding object.Encoding, since uint64) (*fresh.Feed, error) {
	key := store.Key{GVR: gvr, Encoding: encoding}
	f, err := fs.enter(ctx, key)
	if errors.Is(err, errRedefined) && client.Sleep(ctx, settling) {
		// All watches of the resource have just ended, and their clients come back immediately. If
		// these were forwarded, they would stay connected to upstream.
		f, err = fs.enter(ctx, key)
	}
	if err != nil {
		return nil, err
	}
	f.Use(since)
	if err := f.Ready(ctx); err != nil {
		return nil, err
	}
	return f, nil
}

// Caches tells, without waiting, whether a resource can have a feed. It returns false for resources
// that are excluded, or that were recently found not to exist or not to be cacheable.
func (fs *Feeds) Caches(gvr schema.GroupVersionResource) bool {
	if fs.Options.Load().Excludes(gvr) {
		return false
	}
	fs.mu.Lock()
	defer fs.mu.Unlock()
	if fs.mu.feeds[store.Key{GVR: gvr}] == nil && fs.Names.Lacks(gvr) {
		return false
	}
	r, ok := fs.mu.refused[store.Key{GVR: gvr}]
	return !ok || errors.Is(r.err, errRedefined) || !time.Now().Before(r.until)
}

// Joins tells, without waiting, whether a feed can answer a get of the most recent state without an
// upstream request. This needs an earlier proof within the resource's maxAge, or a running one to
// join and a client that is known to be allowed (see [fresh.Feed.Joins]).
func (fs *Feeds) Joins(gvr schema.GroupVersionResource, encoding object.Encoding, allowed func() bool) bool {
	fs.mu.Lock()
	f := fs.mu.feeds[store.Key{GVR: gvr, Encoding: encoding}]
	fs.mu.Unlock()
	return f != nil && f.ServesConsistent() && f.Settled() && f.Joins(allowed)
}

// enter returns the running feed of a resource or, if upstream serves it, starts one.
func (fs *Feeds) enter(ctx context.Context, key store.Key) (*fresh.Feed, error) {
	asked := time.Now()
	fs.mu.Lock()
	f, err := fs.lookLocked(key)
	fs.mu.Unlock()
	if f != nil || err != nil {
		return f, err
	}
	if err := fs.Names.Serves(ctx, key.GVR); err != nil {
		return nil, err
	}
	return fs.feed(key, asked)
}

// feed returns the running feed of a resource, or starts one for a client that asked at the time
// asked.
func (fs *Feeds) feed(key store.Key, asked time.Time) (*fresh.Feed, error) {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	if f, err := fs.lookLocked(key); f != nil || err != nil {
		return f, err
	}
	delete(fs.mu.refused, key)
	gvr := &key.GVR // a copy: the feed must not keep the request's strings
	gvr.Group, gvr.Version, gvr.Resource = strings.Clone(gvr.Group), strings.Clone(gvr.Version), strings.Clone(gvr.Resource)
	limits := fs.mu.pressure.limits(fs.Options.Load().Limits)
	f := fs.keeper.New(feed.New(fs.ctx, fs.Upstream, key, asked, limits))
	fs.mu.feeds[key] = f
	fs.running.Go(func() { fs.own(f) })
	fs.running.Go(func() { fs.reconfigure(f) })
	return f, nil
}

// lookLocked returns the running feed of a resource, or the reason why there is none. It returns
// nil and no error if a feed could be started.
func (fs *Feeds) lookLocked(key store.Key) (*fresh.Feed, error) {
	if fs.Options.Load().Excludes(key.GVR) {
		return nil, ErrExcluded
	}
	if f := fs.mu.feeds[key]; f != nil {
		return f, nil
	}
	if fs.ctx.Err() != nil {
		return nil, errStopped
	}
	if f := fs.mu.feeds[store.Key{GVR: key.GVR}]; key.Encoding == object.Protobuf && f != nil && f.Started() && f.Cache().Resource().SelfDescribing {
		return nil, fmt.Errorf("%w: %s is a custom one", object.ErrNoEncoding, key.GVR) // known without asking upstream
	}
	if r, ok := fs.mu.refused[key]; ok && time.Now().Before(r.until) {
		return nil, r.err
	}
	if fs.mu.pressure.NoNewFeeds {
		return nil, ErrNoMemory
	}
	return nil, nil
}

// own runs a feed and removes it from the set when it ends, unless it was given up.
func (fs *Feeds) own(f *fresh.Feed) {
	err := f.Run(func() { fs.started(f) })
	fs.mu.Lock()
	defer fs.mu.Unlock()
	if fs.mu.feeds[f.Key] != f {
		return
	}
	delete(fs.mu.feeds, f.Key)
	if err != nil {
		pause := pauseAfter(err)
		if notForUs(err) {
			fs.forgetSaved(f.Key)
		}
		level := zap.InfoLevel
		if forbidden := apierrors.IsForbidden(err); fs.knownForbiddenLocked(f.GVR, forbidden) && forbidden {
			level = zap.DebugLevel
		}
		f.Log.Log(level, "not cached; requests are forwarded", zap.Error(err), zap.Duration("for", pause))
		fs.refuseLocked(f.Key, err, pause)
	}
}

// started follows the definitions if the feed is of a custom resource. It abandons the feed if its
// definition has already changed, because bytes of the old definition must not be served.
func (fs *Feeds) started(f *fresh.Feed) {
	was, custom := f.Definition()
	if !custom {
		return
	}
	fs.definitions.Begin.Do(func() { fs.running.Go(func() { fs.definitions.Run(fs.ctx) }) })
	if fs.definitions.Outdated(discovery.DefinitionName(f.GVR), was) {
		fs.abandon(f)
	}
}

// redefined abandons the feeds of a custom resource whose definition changed.
func (fs *Feeds) redefined(name string, now discovery.Version) {
	for _, f := range fs.list() {
		if was, custom := f.Definition(); custom && was != now && discovery.DefinitionName(f.GVR) == name {
			f.Log.Info("definition changed", zap.Int64("generation", now.Generation))
			fs.abandon(f)
		}
	}
}

func (fs *Feeds) abandon(f *fresh.Feed) { fs.giveUp(f, errRedefined, settling) }

// giveUp ends a feed immediately and remembers the reason for a while.
func (fs *Feeds) giveUp(f *fresh.Feed, reason error, pause time.Duration) {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	f.Abandon()
	if fs.mu.feeds[f.Key] == f {
		delete(fs.mu.feeds, f.Key)
		fs.refuseLocked(f.Key, reason, pause)
	}
}

// settling is the time for which requests for a custom resource wait after a change of its
// definition. Upstream needs a moment to serve the new version.
const settling = 2 * time.Second

// retireIdle stops feeds that have not been used for IdleTimeout.
func (fs *Feeds) retireIdle() {
	for {
		idle := fs.Options.Load().IdleTimeout
		if idle <= 0 {
			idle = math.MaxInt64
		}
		if !client.Sleep(fs.ctx, min(time.Minute, idle/10)) {
			return
		}
		for _, f := range fs.list() {
			if f.Idle() > idle {
				f.Log.Info("stopping idle feed")
				f.Stop()
				fs.forgetSaved(f.Key)
			}
		}
	}
}

// list returns the started feeds, ordered by group, version, resource and encoding.
func (fs *Feeds) list() []*fresh.Feed {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	feeds := make([]*fresh.Feed, 0, len(fs.mu.feeds))
	for _, f := range fs.mu.feeds {
		if f.Started() {
			feeds = append(feeds, f)
		}
	}
	slices.SortFunc(feeds, func(a, b *fresh.Feed) int { return slices.Compare(a.Sorted(), b.Sorted()) })
	return feeds
}

// errReconfigured ends a feed whose resource must be cached differently because its options
// changed.
var errReconfigured = errors.New("the resource is cached in another way now")

// SetOptions changes all options except SelfCheck while feeds run. Feeds of newly excluded
// resources end, and so do their watches. Feeds whose Aggregated option changed start again. All
// other feeds go on.
func (fs *Feeds) SetOptions(options feed.Options) {
	options.SelfCheck = fs.Options.Load().SelfCheck
	fs.mu.Lock()
	fs.Options.Store(&options)
	fs.keeper.SetBudget(options.MaxProbes)
	clear(fs.mu.refused) // the reasons may no longer hold
	for _, f := range fs.mu.feeds {
		fs.running.Go(func() { fs.reconfigure(f) })
	}
	fs.mu.Unlock()
}

// reconfigure applies the current options to a started feed. It is also called for a feed that has
// just started, because the options may have changed during the start.
func (fs *Feeds) reconfigure(f *fresh.Feed) {
	if f.Start(fs.ctx) != nil {
		return
	}
	options := fs.Options.Load()
	switch {
	case options.Excludes(f.GVR):
		fs.giveUp(f, ErrExcluded, 0)
		f.Stop()
		fs.forgetSaved(f.Key)
	case options.Resources[f.GVR.GroupResource()].Aggregated != f.Aggregated:
		fs.giveUp(f, errReconfigured, 0)
	default:
		fs.shed(f)
	}
}
