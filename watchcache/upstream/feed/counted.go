package feed

import (
	"context"
	"time"

	"github.com/watchproxy/watchproxy/watchcache"
	"github.com/watchproxy/watchproxy/watchcache/upstream/client"
)

// askTimeout limits the wait for a response from upstream.
const askTimeout = 5 * time.Second

// counted returns a wholeFunc for a cache. The cache has the state before the revision. Upstream
// counts the objects that are left at the revision, so its response is small. If the revision has
// deleted the whole state, it has no further deletions.
func counted(cache *watchcache.Cache, upstream *client.Client) wholeFunc {
	return func(ctx context.Context, rv uint64, deletions int) bool {
		ctx, cancel := context.WithTimeout(ctx, askTimeout)
		defer cancel()
		before, err := cache.SnapshotAt(cache.Stats().ResourceVersion)
		if err != nil || before.Len() <= deletions {
			return err == nil
		}
		left, err := upstream.CountAt(ctx, cache.Resource(), rv)
		return err == nil && left == before.Len()-deletions
	}
}
