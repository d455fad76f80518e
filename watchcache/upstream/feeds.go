package upstream

import (
	"context"
	"errors"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/watchproxy/watchproxy/watchcache"
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

// Feeds keeps the caches of resources. Reads enter by Open, which starts a feed on first use.
type Feeds struct {
	shared  *feed.Shared
	ctx     context.Context //nolint:containedctx // the life of the feeds
	cancel  context.CancelFunc
	running sync.WaitGroup
	set     *feedSet
	keeper  *fresh.Keeper
	customs *customResources
	Memory  *Memory
}

// NewFeeds returns an empty set. Stop ends it.
func NewFeeds(
	client *client.Client, servers *client.Servers, metrics *Metrics, options feed.Options,
	log *zap.Logger,
) *Feeds {
	fs := &Feeds{}
	fs.ctx, fs.cancel = context.WithCancel(context.Background())
	fs.shared = &feed.Shared{
		Client:  client,
		Health:  servers.Health,
		Names:   discovery.New(fs.ctx, client, &fs.running, log),
		Metrics: metrics.feed,
		Log:     log,
	}
	fs.shared.Options.Store(&options)
	fs.set = newFeedSet(fs.ctx, fs.shared)
	fs.Memory = &Memory{feeds: fs.set}
	fs.customs = &customResources{
		running:     &fs.running,
		feeds:       fs.set,
		definitions: discovery.Definitions(client, servers.Health, log),
		services:    discovery.Services(client, servers.Health, log),
	}
	fs.keeper = fresh.NewKeeper(fs.shared, metrics.fresh, fs.set)
	fs.keeper.SetBudget(options.MaxProbes)
	fs.running.Go(func() { servers.Run(fs.ctx) })
	fs.running.Go(fs.set.retireIdle)
	fs.running.Go(func() { proveClock(fs.set) })
	fs.running.Go(func() { fs.keeper.Run(fs.ctx) })
	if options.SelfCheck > 0 {
		fs.running.Go(func() { checkAll(fs.set, options.SelfCheck) })
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

func use(ctx context.Context, f *fresh.Feed, since uint64) error {
	f.Feed.Usage.Note(since)
	return f.Feed.Progress.Ready(ctx)
}

func (fs *Feeds) enter(ctx context.Context, key feed.Key) (*fresh.Feed, error) {
	asked := time.Now()
	if f, err := fs.set.find(key); f != nil || err != nil {
		return f, err
	}
	if err := fs.shared.Names.Serves(ctx, key.GVR); err != nil {
		return nil, err
	}
	return fs.feed(key, asked)
}

// feed finds or starts the feed of a resource. asked is the time of the client's request.
func (fs *Feeds) feed(key feed.Key, asked time.Time) (*fresh.Feed, error) {
	return fs.set.findOrAdd(key, func(key feed.Key, limits watchcache.Limits) *fresh.Feed {
		f := fs.keeper.New(feed.New(fs.ctx, fs.shared, key, asked, limits))
		fs.running.Go(func() { fs.set.ended(f, f.Feed.Run(func() { fs.customs.started(f) })) })
		fs.running.Go(func() { fs.reconfigure(f) })
		return f
	})
}

// errReconfigured ends a feed if changed options require a different cache for its resource.
var errReconfigured = errors.New("the resource is cached in another way now")

// SetOptions changes all options except SelfCheck while feeds run. If a resource or a feed's scope
// is newly excluded, the feed and its watches end. If a resource's Aggregated option changes, its
// feed starts again. All other feeds continue.
func (fs *Feeds) SetOptions(options feed.Options) {
	options.SelfCheck = fs.shared.Options.Load().SelfCheck
	fs.keeper.SetBudget(options.MaxProbes)
	for _, f := range fs.set.setOptions(&options) {
		fs.running.Go(func() { fs.reconfigure(f) })
	}
}

// reconfigure applies the current options to a feed, once it has started. It is also called for
// each new feed, because the options may have changed during the start.
func (fs *Feeds) reconfigure(f *fresh.Feed) {
	if f.Feed.Progress.Start(fs.ctx) != nil {
		return
	}
	options := fs.shared.Options.Load()
	switch {
	case options.Excludes(f.Feed.GVR), !covers(options, f.Feed.Key):
		fs.set.giveUp(f, ErrExcluded, 0)
		f.Feed.Stop()
	case options.Resources[f.Feed.GVR.GroupResource()].Aggregated != f.Feed.Aggregated:
		fs.set.giveUp(f, errReconfigured, 0)
	default:
		fs.Memory.shed(f)
	}
}
