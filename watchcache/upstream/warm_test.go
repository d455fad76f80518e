package upstream

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/watchproxy/watchproxy/watchcache/object"
	"github.com/watchproxy/watchproxy/watchcache/upstream/feed"
)

// Warm fills caches before the first request, and keeps them. It tries again while upstream refuses or is
// away.
func TestWarm(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNarrow()
		n.set("a", "1")
		feeds := start(t, n, ownNamespace, func(o *feed.Options) { o.IdleTimeout = 2 * warmUse })
		w := feeds.Warm([]Part{
			{Resource: configmaps.GroupResource(), Scope: object.Scope{Namespace: "ns"}}, {Resource: configmaps.GroupResource()},
		})
		if err := w.Err(); err == nil || !strings.Contains(err.Error(), "is not filled yet") {
			t.Errorf("at first: %v", err)
		}
		time.Sleep(time.Minute)
		if err := w.Err(); err == nil || !strings.Contains(err.Error(), "the cache of configmaps cannot be filled: ") {
			t.Errorf("without the right to read the whole: %v", err)
		}
		n.wide.Store(0)
		time.Sleep(time.Minute)
		if err := w.Err(); err != nil {
			t.Errorf("with the right to read the whole: %v", err)
		}
		n.locked(func() { n.mu.down = errDown })
		n.cutStreams(false)
		time.Sleep(time.Minute)
		if err := w.Err(); err != nil { // readiness does not depend on upstream
			t.Errorf("while upstream is away: %v", err)
		}
		n.locked(func() { n.mu.down = nil })
		time.Sleep(24 * time.Hour)
		if n := len(feeds.set.Started()); n != 2 {
			t.Errorf("after a day without clients there are %d caches", n)
		}
	})
}
