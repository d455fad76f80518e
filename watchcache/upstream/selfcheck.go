package upstream

import (
	"errors"
	"math/rand/v2"
	"time"

	"go.uber.org/zap"

	"github.com/watchproxy/watchproxy/watchcache/upstream/client"
	"github.com/watchproxy/watchproxy/watchcache/upstream/feed"
	"github.com/watchproxy/watchproxy/watchcache/upstream/fresh"
)

// checkAll compares all feeds with upstream, one after another, once per interval.
func (fs *Feeds) checkAll(interval time.Duration) {
	for {
		feeds := fs.list()
		pause := interval / time.Duration(len(feeds)+1)
		if !client.Sleep(fs.ctx, pause/2+rand.N(pause+1)) {
			return
		}
		for _, f := range feeds {
			fs.check(f)
			if !client.Sleep(fs.ctx, pause/2+rand.N(pause+1)) {
				return
			}
		}
	}
}

// check compares a feed with upstream. A feed that differs starts again.
func (fs *Feeds) check(f *fresh.Feed) {
	if stats := f.Cache().Stats(); !stats.Ready {
		return
	}
	outcome := "same"
	switch err := f.SelfCheck(fs.ctx); {
	case fs.ctx.Err() != nil:
		return
	case errors.Is(err, feed.ErrDiffers):
		outcome = "different"
		f.Log.Error("self-check: cache differs; reading it again", zap.Error(err))
		f.Interrupt(err)
	case err != nil:
		outcome = "inconclusive"
		f.Log.Debug("self-check", zap.Error(err))
	}
	fs.metrics.checks.WithLabelValues(f.GVR.Group, f.GVR.Version, f.GVR.Resource, outcome).Inc()
}
