package upstream

import (
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/watchproxy/watchproxy/watchcache"
	"github.com/watchproxy/watchproxy/watchcache/upstream/servers"
)

// After a restore, upstream accepts a watch from a future resourceVersion. The watch stays silent
// until upstream reaches that resourceVersion with another history. A feed that reconnects must
// detect this before it resumes.
func TestStreamIsNotResumedFromTheFuture(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		cache := open(t, start(t, f))
		for i := range 50 {
			f.set("a", fmt.Sprint(i))
		}
		reached(t, f, cache)
		seen := cache.Stats().ResourceVersion
		cursor := watchAll(t, cache)
		defer cursor.Close()
		f.locked(func() {
			f.mu.rev, f.mu.history, f.mu.oldest = 110, nil, 0
			f.mu.objects = map[string]string{}
		})
		f.cutStreams(false)
		time.Sleep(servers.Steady)
		if _, _, err := cursor.Poll(nil, 10); !errors.Is(err, watchcache.ErrEnded) {
			t.Errorf("the old watch goes on: %v", err)
		}
		filter := mustFilter(t, cache)
		if _, err := cache.Watch(filter, seen); !errors.Is(err, watchcache.ErrTooOld) {
			t.Errorf("a watch from %d of the lost history: %v", seen, err)
		}
		f.set("b", "1")
		reached(t, f, cache)
	})
}
