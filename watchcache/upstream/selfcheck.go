package upstream

import (
	"context"
	"math/rand/v2"
	"time"

	"github.com/watchproxy/watchproxy/watchcache/upstream/client"
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

// checkLimit limits the duration of a periodic check.
const checkLimit = time.Minute

// check compares a feed with upstream. If the two differ, the feed reads the state again.
func (fs *Feeds) check(f *fresh.Feed) {
	if stats := f.Cache().Stats(); !stats.Ready {
		return
	}
	ctx, cancel := context.WithTimeout(fs.ctx, checkLimit)
	defer cancel()
	if differs, err := f.Feed.SelfCheck(ctx); differs {
		f.Feed.Interrupt(err)
	}
}
