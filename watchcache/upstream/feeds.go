package upstream

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"sync"
	"time"

	"go.uber.org/zap"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/watchproxy/watchproxy/watchcache/object"
	"github.com/watchproxy/watchproxy/watchcache/upstream/client"
	"github.com/watchproxy/watchproxy/watchcache/upstream/discovery"
	"github.com/watchproxy/watchproxy/watchcache/upstream/feed"
	"github.com/watchproxy/watchproxy/watchcache/upstream/fresh"
)

var (
	// ErrExcluded means that the configuration excludes a resource from caching.
	ErrExcluded = errors.New("resource is excluded from caching")
	errStopped  = errors.New("feeds are stopped")
)

// Feeds is the set of running feeds. Reads enter by Open. The first request for a resource starts
// its feed.
type Feeds struct {
	shared  *feed.Shared
	servers *client.Servers
	metrics *Metrics
	ctx     context.Context
	cancel  context.CancelFunc
	running sync.WaitGroup
	keeper  *fresh.Keeper

	shedding sync.Mutex // held while shed runs

	definitions *discovery.Followed[discovery.Version]
	services    *discovery.Followed[string]

	mu struct {
		sync.Mutex
		// The resources in these maps come from discovery, and the scopes from the configuration and
		// the proxy's pod, so clients cannot add any.
		feeds   map[feed.Key]*fresh.Feed
		refused map[feed.Key]refusal // at most refusalsMax
		// forbidden contains the resources that upstream last refused with 403, at most
		// refusalsMax.
		forbidden map[schema.GroupVersionResource]struct{}
		pressure  MemoryPressure
	}
}

// NewFeeds returns an empty set. Stop ends it.
func NewFeeds(client *client.Client, servers *client.Servers, metrics *Metrics, options feed.Options, log *zap.Logger) *Feeds {
	fs := &Feeds{servers: servers, metrics: metrics}
	fs.ctx, fs.cancel = context.WithCancel(context.Background())
	fs.shared = &feed.Shared{
		Client: client, Health: servers.Health, Names: discovery.New(fs.ctx, client, &fs.running, log), Metrics: metrics.feed, Log: log,
	}
	fs.shared.Options.Store(&options)
	fs.keeper = fresh.NewKeeper(fs.shared, metrics.fresh, fs.list)
	fs.keeper.SetBudget(options.MaxProbes)
	fs.mu.feeds = map[feed.Key]*fresh.Feed{}
	fs.mu.refused = map[feed.Key]refusal{}
	fs.mu.forbidden = map[schema.GroupVersionResource]struct{}{}
	fs.definitions, fs.services = discovery.Definitions(fs.redefined), discovery.Services(fs.moved)
	fs.definitions.Client, fs.definitions.Health, fs.definitions.Log = client, servers.Health, log
	fs.services.Client, fs.services.Health, fs.services.Log = client, servers.Health, log
	fs.running.Go(func() { servers.Run(fs.ctx) })
	fs.running.Go(fs.retireIdle)
	fs.running.Go(fs.proveClock)
	fs.running.Go(func() { fs.keeper.Run(fs.ctx) })
	if options.SelfCheck > 0 {
		fs.running.Go(func() { fs.checkAll(options.SelfCheck) })
	}
	return fs
}

// Stop ends all feeds and their caches, and waits until they have ended.
func (fs *Feeds) Stop() {
	fs.cancel()
	fs.running.Wait()
}

// open returns the feed of a key once its cache may answer a read.
func (fs *Feeds) open(ctx context.Context, key feed.Key, since uint64) (*fresh.Feed, error) {
	f, err := fs.enter(ctx, key)
	if errors.Is(err, feed.ErrServedAnew) && client.Sleep(ctx, changeDelay) {
		// All watches of the resource have just ended, and their clients return immediately. A
		// forwarded client would stay connected to upstream.
		f, err = fs.enter(ctx, key)
	}
	if err != nil {
		return nil, err
	}
	return f, use(ctx, f, since)
}

// use waits until a feed's cache is filled.
func use(ctx context.Context, f *fresh.Feed, since uint64) error {
	f.Feed.Use(since)
	return f.Feed.Soon(ctx)
}

// enter returns the running feed of a resource. If there is none and upstream serves the resource,
// enter starts a feed.
func (fs *Feeds) enter(ctx context.Context, key feed.Key) (*fresh.Feed, error) {
	asked := time.Now()
	fs.mu.Lock()
	f, err := fs.lookLocked(key)
	fs.mu.Unlock()
	if f != nil || err != nil {
		return f, err
	}
	if err := fs.shared.Names.Serves(ctx, key.GVR); err != nil {
		return nil, err
	}
	return fs.feed(key, asked)
}

// feed returns the running feed of a resource, or starts a feed. asked is the time of the client's
// request.
func (fs *Feeds) feed(key feed.Key, asked time.Time) (*fresh.Feed, error) {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	return fs.feedLocked(key, asked)
}

func (fs *Feeds) feedLocked(key feed.Key, asked time.Time) (*fresh.Feed, error) {
	if f, err := fs.lookLocked(key); f != nil || err != nil {
		return f, err
	}
	delete(fs.mu.refused, key)
	key = key.Clone() // the feed must not keep the request's strings
	limits := fs.mu.pressure.limits(fs.shared.Options.Load().Limits)
	f := fs.keeper.New(feed.New(fs.ctx, fs.shared, key, asked, limits))
	fs.mu.feeds[key] = f
	fs.running.Go(func() { fs.own(f) })
	fs.running.Go(func() { fs.reconfigure(f) })
	return f, nil
}

// lookLocked returns the running feed of a resource, or the reason why there is no feed. If a feed
// can be started, lookLocked returns nil and no error.
func (fs *Feeds) lookLocked(key feed.Key) (*fresh.Feed, error) {
	switch options := fs.shared.Options.Load(); {
	case options.Excludes(key.GVR):
		return nil, ErrExcluded
	case !covers(options, key):
		return nil, ErrOutOfScope
	}
	if f := fs.mu.feeds[key]; f != nil {
		return f, nil
	}
	if fs.ctx.Err() != nil {
		return nil, errStopped
	}
	if f := fs.mu.feeds[feed.Key{GVR: key.GVR, Scope: key.Scope}]; key.Encoding == object.Protobuf && f != nil && f.Feed.Started() && f.Cache().Resource().SelfDescribing {
		return nil, fmt.Errorf("%w: %s is a custom one", object.ErrNoEncoding, key.GVR) // known without a request to upstream
	}
	if err := fs.refusedLocked(key); err != nil {
		return nil, err
	}
	if fs.mu.pressure.NoNewFeeds {
		return nil, ErrNoMemory
	}
	return nil, nil
}

// own runs a feed. When the feed ends, own removes it from the set, unless giveUp has removed it.
func (fs *Feeds) own(f *fresh.Feed) {
	err := f.Feed.Run(func() { fs.started(f) })
	fs.mu.Lock()
	defer fs.mu.Unlock()
	if fs.mu.feeds[f.Feed.Key] != f {
		return
	}
	delete(fs.mu.feeds, f.Feed.Key)
	if err != nil {
		pause := pauseAfter(err)
		level := zap.InfoLevel
		if forbidden := apierrors.IsForbidden(err); fs.knownForbiddenLocked(f.Feed.GVR, forbidden) && forbidden {
			level = zap.DebugLevel
		}
		f.Feed.Log.Log(level, "not cached; requests are forwarded", zap.Error(err), zap.Duration("for", pause))
		fs.refuseLocked(f.Feed.Key, err, pause)
	}
}

// started is called when a feed has a cache. For a custom resource, it starts to follow the
// definitions and the APIServices. If one of them has already changed, started abandons the feed,
// because bytes of the old definition or server must not be served.
func (fs *Feeds) started(f *fresh.Feed) {
	if !f.Cache().Resource().SelfDescribing {
		return
	}
	fs.services.Begin.Do(func() { fs.running.Go(func() { fs.services.Run(fs.ctx) }) })
	server, ok := fs.services.Known(discovery.ServiceName(f.Feed.GVR.GroupVersion()))
	outdated := ok && server != discovery.Local && !f.Feed.Aggregated
	if was, custom := f.Feed.Definition(); custom {
		fs.definitions.Begin.Do(func() { fs.running.Go(func() { fs.definitions.Run(fs.ctx) }) })
		now, ok := fs.definitions.Known(discovery.DefinitionName(f.Feed.GVR))
		outdated = outdated || ok && now.After(was)
	}
	if outdated {
		fs.abandon(f)
	}
}

// moved abandons the feeds of an API that has moved to another server.
func (fs *Feeds) moved(name, was, now string) {
	aggregated := now != "" && now != discovery.Local
	for _, f := range fs.list() {
		if discovery.ServiceName(f.Feed.GVR.GroupVersion()) == name && (f.Feed.Aggregated && was != "" || !f.Feed.Aggregated && aggregated) {
			f.Feed.Log.Info("another server serves the resource", zap.String("before", was), zap.String("now", now))
			fs.abandon(f)
		}
	}
}

// redefined abandons the feeds of a custom resource whose definition changed.
func (fs *Feeds) redefined(name string, _, now discovery.Version) {
	for _, f := range fs.list() {
		if was, custom := f.Feed.Definition(); custom && was != now && discovery.DefinitionName(f.Feed.GVR) == name {
			f.Feed.Log.Info("definition changed", zap.Int64("generation", now.Generation))
			fs.abandon(f)
		}
	}
}

func (fs *Feeds) abandon(f *fresh.Feed) { fs.giveUp(f, feed.ErrServedAnew, changeDelay) }

// giveUp ends a feed immediately and remembers the reason for a while.
func (fs *Feeds) giveUp(f *fresh.Feed, reason error, pause time.Duration) {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	f.Feed.Abandon()
	if fs.mu.feeds[f.Feed.Key] == f {
		delete(fs.mu.feeds, f.Feed.Key)
		fs.refuseLocked(f.Feed.Key, reason, pause)
	}
}

// changeDelay is how long requests for a custom resource wait after a change of its definition or
// server. Upstream needs this time to serve the new one.
const changeDelay = 2 * time.Second

// retireIdle stops feeds that have not been used for IdleTimeout.
func (fs *Feeds) retireIdle() {
	for {
		idle := fs.shared.Options.Load().IdleTimeout
		if idle <= 0 {
			idle = math.MaxInt64
		}
		if !client.Sleep(fs.ctx, min(time.Minute, idle/10)) {
			return
		}
		for _, f := range fs.list() {
			if f.Feed.Idle() > idle {
				f.Feed.Log.Info("stopping idle feed")
				f.Feed.Stop()
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
		if f.Feed.Started() {
			feeds = append(feeds, f)
		}
	}
	slices.SortFunc(feeds, func(a, b *fresh.Feed) int { return slices.Compare(a.Feed.Sorted(), b.Feed.Sorted()) })
	return feeds
}

// errReconfigured ends a feed if changed options require a different cache for its resource.
var errReconfigured = errors.New("the resource is cached in another way now")

// SetOptions changes all options except SelfCheck while feeds run. If a resource or a feed's scope is
// newly excluded, the feed and its watches end. If a resource's Aggregated option changes, its feed
// starts again. All other feeds continue.
func (fs *Feeds) SetOptions(options feed.Options) {
	options.SelfCheck = fs.shared.Options.Load().SelfCheck
	fs.mu.Lock()
	fs.shared.Options.Store(&options)
	fs.keeper.SetBudget(options.MaxProbes)
	clear(fs.mu.refused) // the reasons may be outdated
	for _, f := range fs.mu.feeds {
		fs.running.Go(func() { fs.reconfigure(f) })
	}
	fs.mu.Unlock()
}

// reconfigure applies the current options to a feed, once it has started. It is also called for
// each new feed, because the options may have changed during the start.
func (fs *Feeds) reconfigure(f *fresh.Feed) {
	if f.Feed.Start(fs.ctx) != nil {
		return
	}
	options := fs.shared.Options.Load()
	switch {
	case options.Excludes(f.Feed.GVR), !covers(options, f.Feed.Key):
		fs.giveUp(f, ErrExcluded, 0)
		f.Feed.Stop()
	case options.Resources[f.Feed.GVR.GroupResource()].Aggregated != f.Feed.Aggregated:
		fs.giveUp(f, errReconfigured, 0)
	default:
		fs.shed(f)
	}
}
