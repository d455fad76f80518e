package upstream

import (
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/watchproxy/watchproxy/watchcache/upstream/discovery"
	"github.com/watchproxy/watchproxy/watchcache/upstream/feed"
	"github.com/watchproxy/watchproxy/watchcache/upstream/fresh"
)

// customResources follows what decides how upstream serves custom resources: their definitions, and
// the APIServices. If one of them changes, the feeds that depend on it are abandoned, because bytes
// of the old definition or server must not be served.
type customResources struct {
	running     *sync.WaitGroup
	feeds       *feedSet
	definitions *discovery.Followed[discovery.Version]
	services    *discovery.Followed[discovery.Server]
}

// started is called when a feed has a cache, whose definition or server may have changed already.
func (c *customResources) started(f *fresh.Feed) {
	if !f.Cache().Resource().SelfDescribing {
		return
	}
	c.services.Begin.Do(func() { c.running.Go(func() { c.services.Run(c.feeds.ctx, c.moved) }) })
	server, ok := c.services.Known(discovery.ServiceName(f.Feed.GVR.GroupVersion()))
	outdated := ok && server != discovery.Local && !f.Feed.Aggregated
	if was := f.Feed.Described.Definition; was != (discovery.Version{}) {
		c.definitions.Begin.Do(func() {
			c.running.Go(func() { c.definitions.Run(c.feeds.ctx, c.redefined) })
		})
		now, ok := c.definitions.Known(discovery.DefinitionName(f.Feed.GVR))
		outdated = outdated || ok && now.After(was)
	}
	if outdated {
		c.abandon(f)
	}
}

func (c *customResources) moved(to discovery.Change[discovery.Server]) {
	aggregated := to.Now != "" && to.Now != discovery.Local
	for _, f := range c.feeds.Started() {
		if discovery.ServiceName(f.Feed.GVR.GroupVersion()) != to.Name {
			continue
		}
		if f.Feed.Aggregated && to.Was != "" || !f.Feed.Aggregated && aggregated {
			f.Feed.Log.Info("another server serves the resource",
				zap.String("before", string(to.Was)), zap.String("now", string(to.Now)))
			c.abandon(f)
		}
	}
}

func (c *customResources) redefined(to discovery.Change[discovery.Version]) {
	for _, f := range c.feeds.Started() {
		was := f.Feed.Described.Definition
		known := was != (discovery.Version{})
		if known && was != to.Now && discovery.DefinitionName(f.Feed.GVR) == to.Name {
			f.Feed.Log.Info("definition changed", zap.Int64("generation", to.Now.Generation))
			c.abandon(f)
		}
	}
}

func (c *customResources) abandon(f *fresh.Feed) {
	c.feeds.giveUp(f, feed.ErrServedAnew, changeDelay)
}

// changeDelay is how long requests for a custom resource wait after a change of its definition or
// server. Upstream needs this time to serve the new one.
const changeDelay = 2 * time.Second
