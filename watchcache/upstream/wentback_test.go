package upstream

import (
	"errors"
	"fmt"
	"math"
	"testing"
	"testing/synctest"
	"time"

	"github.com/watchproxy/watchproxy/watchcache"
	"github.com/watchproxy/watchproxy/watchcache/upstream/client"
)

// After a restore, upstream refuses a watch from a future resourceVersion, or accepts it. An accepted
// watch stays silent until upstream reaches that resourceVersion with another history. A feed that
// reconnects must detect this before it resumes. Nothing of the lost history is kept.
func TestStreamIsNotResumedFromTheFuture(t *testing.T) {
	for name, oldest := range map[string]uint64{"silent": 0, "refused": 1 << 60} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFake()
				cache := open(t, start(t, f))
				for i := range 50 {
					f.set("a", fmt.Sprint(i))
				}
				reached(t, f, cache)
				seen := cache.Stats().ResourceVersion
				cursor := watchAll(t, cache)
				f.restore(110, oldest)
				f.cutStreams(false)
				time.Sleep(client.Steady)
				if _, _, err := cursor.Poll(nil, 10, math.MaxInt); !errors.Is(err, watchcache.ErrEnded) {
					t.Errorf("the old watch goes on: %v", err)
				}
				if _, err := cache.Watch(mustFilter(t, cache), seen); !errors.Is(err, watchcache.ErrTooOld) {
					t.Errorf("a watch from %d of the lost history: %v", seen, err)
				}
				f.locked(func() { f.mu.oldest = 0 })
				f.set("b", "1")
				reached(t, f, cache)
			})
		})
	}
}
