package upstream

import (
	"context"
	"math/rand/v2"
	"time"

	"github.com/watchproxy/watchproxy/watchcache/upstream/client"
	"github.com/watchproxy/watchproxy/watchcache/upstream/fresh"
)

// checkAll compares all feeds with upstream, one after another, once per interval. A feed that
// differs reads its state again.
func checkAll(all *feedSet, interval time.Duration) {
	for {
		feeds := all.Started()
		pause := interval / time.Duration(len(feeds)+1)
		for _, f := range append([]*fresh.Feed{nil}, feeds...) {
			if f != nil && f.Cache().Stats().Ready {
				check(all.ctx, f)
			}
			if !client.Sleep(all.ctx, pause/2+rand.N(pause+1)) {
				return
			}
		}
	}
}

const checkLimit = time.Minute

func check(ctx context.Context, f *fresh.Feed) {
	ctx, cancel := context.WithTimeout(ctx, checkLimit)
	defer cancel()
	if differs, err := f.Feed.SelfCheck.Run(ctx); differs {
		f.Feed.Main.Interrupt(err)
	}
}
