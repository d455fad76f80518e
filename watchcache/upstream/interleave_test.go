package upstream

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"

	"github.com/watchproxy/watchproxy/watchcache"
	"github.com/watchproxy/watchproxy/watchcache/cachetest"
	"github.com/watchproxy/watchproxy/watchcache/upstream/feed"
)

// Writes, cut streams, losses of history and outages interleave. Then a cursor's state equals
// upstream's state, and the cursor's events are in order and without repeats.
func TestRandomInterleavings(t *testing.T) {
	seed := cachetest.Seed(t)
	for round := range cachetest.Rounds(10, 30) {
		t.Run(fmt.Sprint(round), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { interleave(t, rand.New(rand.NewPCG(seed, uint64(round)))) })
		})
	}
}

func interleave(t *testing.T, rnd *rand.Rand) {
	t.Helper()
	f := newFake()
	f.mu.noStream = []int{0, 0, 422}[rnd.IntN(3)]
	fill(f, []int{0, fewObjects, feed.SmallObjects}[rnd.IntN(3)])
	feed := openFeed(t, f)
	cache := feed.Cache()
	cursor := watchAll(t, cache)
	replica, last := uids(t, cache), uint64(0)
	follow := func() {
		deltas, _, err := cursor.Poll(nil, 1<<20)
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range deltas {
			if d.RV < last || d.RV == last && d.Type != watchcache.Deleted { // removals of a relist share a resourceVersion
				t.Fatalf("%s of %s at %d after %d", d.Type, d.Object.Name(), d.RV, last)
			}
			last = d.RV
			name := d.Object.Name()
			_, had := replica[name]
			if had == (d.Type == watchcache.Added) {
				t.Fatalf("%s of %s, known before: %t", d.Type, name, had)
			}
			replica[name] = d.Object.UID()
			if d.Type == watchcache.Deleted {
				delete(replica, name)
			}
		}
	}
	for range 200 {
		name := fmt.Sprintf("o%d", rnd.IntN(8))
		switch rnd.IntN(15) {
		case 0:
			f.cutStreams(false)
		case 1:
			f.cutStreams(true)
		case 2:
			f.locked(func() { f.mu.down = errDown })
		case 3, 4:
			f.locked(func() { f.mu.down = nil })
			time.Sleep(time.Duration(rnd.IntN(20)) * time.Second)
		case 5:
			follow()
		case 6, 7:
			f.remove(name)
		case 8:
			f.stall(rnd.IntN(2) == 0)
		case 9:
			f.elsewhere()
			if s, err := feed.Fresh(t.Context(), true); err == nil {
				same(t, f, s)
			}
		default:
			f.set(name, fmt.Sprint(rnd.Int()))
		}
	}
	f.locked(func() { f.mu.down, f.mu.stalled = nil, false })
	reached(t, f, cache)
	follow()
	if want := uids(t, cache); !maps.Equal(replica, want) {
		t.Errorf("the watch leads to %.500v, upstream has %.500v", replica, want)
	}
}

// uids returns the uids of all cached objects, by name.
func uids(t *testing.T, cache *watchcache.Cache) map[string]string {
	t.Helper()
	s, err := cache.Snapshot()
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]string{}
	for o := range s.Objects("", "") {
		all[o.Name()] = o.UID()
	}
	return all
}
