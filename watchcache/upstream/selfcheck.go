package upstream

import (
	"context"
	"math/rand/v2"
	"time"

	"github.com/watchproxy/watchproxy/watchcache/upstream/client"
	"github.com/watchproxy/watchproxy/watchcache/upstream/fresh"
)

// checkAll compares all feeds with upstream, one after another, once per interval.
func checkAll(all *feedSet, interval time.Duration) {
	for {
		feeds := all.Started()
		pause := interval / time.Duration(len(feeds)+1)
		if !client.Sleep(all.ctx, pause/2+rand.N(pause+1)) {
			return
		}
		for _, f := range feeds {
			check(all.ctx, f)
			if !client.Sleep(all.ctx, pause/2+rand.N(pause+1)) {
				return
			}
		}
	}
}

const checkLimit = time.Minute

// check compares a feed with upstream. If the two differ, the feed reads the state again.
func check(ctx context.Context, f *fresh.Feed) {
	if stats := f.Cache().Stats(); !stats.Ready {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, checkLimit)
	defer cancel()
	if differs, err := f.Feed.SelfCheck.Run(ctx); differs {
		f.Feed.Main.Interrupt(err)
	}
}
