package upstream

import (
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/watchproxy/watchproxy/watchcache/upstream/feed"
	"github.com/watchproxy/watchproxy/watchcache/upstream/fresh"
)

// A feed that stops releases waiting readers.
func TestFreshOfAStoppedFeed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		fill(f, feed.SmallObjects+1)
		feeds := start(t, f)
		feed := openFrom(t, feeds)
		f.stall(true)
		f.elsewhere()
		failed := make(chan error)
		go func() {
			_, err := feed.Fresh(t.Context(), true)
			failed <- err
		}()
		time.Sleep(500 * time.Millisecond) // during the side watch
		feeds.Stop()
		if err := <-failed; err == nil {
			t.Error("answered by a feed that has ended")
		}
		if _, err := feed.Fresh(t.Context(), true); !errors.Is(err, fresh.ErrNotFresh) {
			t.Errorf("got %v", err)
		}
	})
}

// After a restore of etcd, no reader gets the old state as the most recent state, even before a
// stream has detected the restore.
func TestFreshNoticesARestore(t *testing.T) {
	for _, objects := range []int{3, fewObjects + 1} {
		t.Run(fmt.Sprint(objects), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFake()
				fill(f, objects)
				feed := openFeed(t, f)
				for i := range 20 {
					f.set("o001", fmt.Sprint(i))
				}
				synctest.Wait()
				f.restore(110, 0)
				if s, err := feed.Fresh(t.Context(), true); err == nil {
					t.Errorf("a state at %d was called fresh, upstream is at %d", s.ResourceVersion(), f.mu.rev)
				}
				f.cutStreams(false)
				f.set("z", "1")
				time.Sleep(time.Minute)
				same(t, f, readFresh(t, f, feed))
			})
		})
	}
}
