package upstream

import (
	"fmt"
	"math"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/watchproxy/watchproxy/watchcache"
	"github.com/watchproxy/watchproxy/watchcache/upstream/feed"
)

var events = schema.GroupVersionResource{Version: "v1", Resource: "events"}

// leased are the names of the objects that share a lease.
func leased(n int) (names []string) {
	for i := range n {
		names = append(names, fmt.Sprintf("o%03d", i))
	}
	return names
}

// deletions returns what a watch sees of a lease that expires at rv.
func deletions(names []string, rv uint64) (all []string) {
	for _, name := range names {
		all = append(all, fmt.Sprintf("DELETED %s %d", name, rv))
	}
	return all
}

func told(t *testing.T, cursor *watchcache.Cursor) (all []string) {
	t.Helper()
	deltas, _, err := cursor.Poll(nil, 1<<20, math.MaxInt)
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range deltas {
		all = append(all, fmt.Sprintf("%s %s %d", d.Type, d.Object.Name(), d.RV))
	}
	return all
}

func wantAll(t *testing.T, cursor *watchcache.Cursor, want []string) {
	t.Helper()
	if got := told(t, cursor); fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("the watch has seen %d events, want %d: %.300q", len(got), len(want), got)
	}
}

// A lease expires, and no event follows. Upstream counts the objects that are left. Then the
// revision is complete, and the deletions are shown. Deletions with an event behind them need no
// count.
func TestLeaseExpiresSlowly(t *testing.T) {
	for _, others := range []int{0, 1, 7} { // without others, no count is needed
		for _, follows := range []bool{false, true} {
			t.Run(fmt.Sprintf("others=%d,follows=%t", others, follows), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					f := newFake()
					fill(f, 300+others)
					cache := openOf(t, start(t, f), events).Cache()
					synctest.Wait()
					cursor := watchAll(t, cache)
					f.expire(leased(300)...)
					at := f.revision()
					want, counts := deletions(leased(300), at), 1
					if follows {
						f.set("z", "1")
						want = append(want, fmt.Sprintf("ADDED z %d", at+1))
					}
					if follows || others == 0 {
						counts = 0
					}
					synctest.Wait()
					if !follows {
						wantAll(t, cursor, nil)
						time.Sleep(feed.BatchQuiet)
						synctest.Wait()
					}
					wantAll(t, cursor, want)
					time.Sleep(time.Minute)
					if got := f.count("metadata"); got != counts {
						t.Errorf("upstream has counted %d times, want %d", got, counts)
					}
				})
			})
		}
	}
}

func readSnapshot(t *testing.T, cache *watchcache.Cache) watchcache.Snapshot {
	t.Helper()
	s, err := cache.Snapshot()
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// If the self-check, or an event that does not fit, shows that the cache has missed a deletion, the feed
// relists. Watches continue and see the deletion. The wrong states are served no longer.
func TestMissedDeletion(t *testing.T) {
	for _, event := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			f := newFake()
			fill(f, 4)
			feeds := start(t, f)
			cache := open(t, feeds)
			epoch := cache.Stats().Epoch
			cursor := watchAll(t, cache)
			f.lose("o001")
			f.bookmark()
			synctest.Wait()
			at := cache.Stats().ResourceVersion
			if at != f.revision() {
				t.Fatalf("the cache is at %d", at)
			}
			f.elsewhere()
			want := []string{fmt.Sprintf("DELETED o001 %d", at+1)}
			if event { // of another object with the same name
				f.set("o001", "new")
				want = []string{fmt.Sprintf("DELETED o001 %d", at), fmt.Sprintf("ADDED o001 %d", at+2)}
			} else {
				check(feeds.ctx, feeds.set.Started()[0])
			}
			time.Sleep(time.Minute)
			same(t, f, readSnapshot(t, cache))
			wantAll(t, cursor, want)
			if got := cache.Stats().Epoch; got != epoch {
				t.Errorf("epoch %d after %d: all watches have ended", got, epoch)
			}
			if s, err := cache.SnapshotAt(at); err == nil {
				t.Errorf("an exact list shows %d objects", s.Len())
			}
			if _, err := cache.Watch(mustFilter(t, cache), at); err == nil {
				t.Error("a watch can begin at a wrong state")
			}
		})
	}
}
