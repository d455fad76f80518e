package upstream

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/watchproxy/watchproxy/watchcache"
	"github.com/watchproxy/watchproxy/watchcache/cachetest"
	"github.com/watchproxy/watchproxy/watchcache/filter"
	"github.com/watchproxy/watchproxy/watchcache/object"
	"github.com/watchproxy/watchproxy/watchcache/upstream/fresh"
)

// Clients that resume from before a feed's beginning get all later events, once each and in order.
// This holds for any order of the clients, unless upstream has lost that history. In both cases,
// the cache serves no clients until it equals upstream's state.
func TestFeedBeginsWhereClientsGoOn(t *testing.T) {
	seed := cachetest.Seed(t)
	for round := range 200 {
		synctest.Test(t, func(t *testing.T) {
			random := rand.New(rand.NewPCG(seed, uint64(round)))
			f := newFake()
			f.mu.takes = time.Millisecond // long enough for all of the clients below to arrive
			for range random.IntN(2) * 3 * littleMore {
				f.elsewhere()
			}
			for range 10 + random.IntN(30) {
				name := fmt.Sprintf("o-%d", random.IntN(8))
				switch random.IntN(4) {
				case 0:
					f.remove(name)
				case 1:
					f.elsewhere()
				default:
					f.set(name, fmt.Sprint(random.IntN(1000)))
				}
			}
			f.mu.Lock()
			rev := f.mu.rev
			switch random.IntN(3) { // upstream may have lost or may hold back some history
			case 0:
				f.mu.compacted += random.Uint64N(rev - 99)
				f.mu.oldest = f.mu.compacted
			case 1:
				f.mu.oldest += random.Uint64N(rev - 99)
			}
			compacted, oldest := f.mu.compacted, f.mu.oldest
			f.mu.Unlock()
			// Several clients come together.
			feeds := start(t, f)
			ctx, cancel := context.WithTimeout(t.Context(), longEnough)
			defer cancel()
			type opening struct {
				feed *fresh.Feed
				err  error
			}
			opened := make(chan opening)
			clients := make([]uint64, 1+random.IntN(3))
			for i := range clients {
				clients[i] = 95 + random.Uint64N(rev-95+1)
				if random.IntN(8) == 0 {
					clients[i] = 1
				}
				go func() {
					feed, err := feeds.Open(ctx, configmaps, object.Want{}, object.JSON, clients[i])
					opened <- opening{feed, err}
				}()
			}
			var feed *fresh.Feed
			for range clients {
				o := <-opened
				if o.err != nil {
					t.Fatalf("round %d: %v", round, o.err)
				}
				feed = o.feed
			}
			if feed.Cache().Bookmark() == nil {
				t.Errorf("round %d: the cache does not know what bookmarks look like", round)
			}
			if s, err := feed.Cache().Snapshot(); err != nil || s.ResourceVersion() < rev {
				t.Errorf("round %d: the state at %d is answered, upstream was at %d", round, s.ResourceVersion(), rev)
			}
			begins := rev
			for _, at := range slices.Backward(beginnings(clients, rev)) {
				if at >= compacted && at >= oldest {
					begins = at
				}
			}
			if since := feed.Cache().Stats().Since; begins < rev && since != begins {
				t.Errorf("round %d: the history begins at %d, want %d", round, since, begins)
			}
			f.set("another", "later")
			for _, since := range clients {
				cursor, err := feed.Cache().Watch(mustFilter(t, feed.Cache()), since)
				tooOld, late := errors.AsType[*watchcache.TooOldError](err)
				switch {
				case late && since >= max(compacted, oldest) && (since == slices.Min(clients) || since == slices.Max(clients)):
					t.Errorf("round %d: %v, although upstream tells what has happened since", round, tooOld)
				case late != (since < begins):
					t.Errorf("round %d: a watch from %d: %v; the feed could begin at %d", round, since, err, begins)
				case late && tooOld.Gap && since >= oldest:
					t.Errorf("round %d: %v lies in a gap", round, tooOld)
				case late:
				case err != nil:
					t.Fatalf("round %d: %v", round, err)
				default:
					if want, got := f.since(since), polled(t, cursor, len(f.since(since))); got != strings.Join(want, ", ") {
						t.Errorf("round %d: since %d there were %v, a watch shows %v", round, since, want, got)
					}
					cursor.Close()
				}
			}
			reached(t, f, feed.Cache())
		})
	}
}

// littleMore is how many revisions more than needed a feed goes back.
const littleMore = 100

// beginnings returns where a feed may begin for clients that resume, the best first.
func beginnings(clients []uint64, rev uint64) (all []uint64) {
	for _, since := range []uint64{slices.Min(clients), slices.Max(clients)} {
		more := rev - since + littleMore
		all = append(all, since-min(more, since-1), since)
	}
	return all
}

// polled returns the next n events of a cursor as text.
func polled(t *testing.T, cursor *watchcache.Cursor, n int) string {
	t.Helper()
	var got []string
	for {
		deltas, _, err := cursor.Poll(nil, 100)
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range deltas {
			got = append(got, fmt.Sprintf("%s %s %d", d.Type, d.Object.Name(), d.RV))
		}
		if len(got) >= n {
			return strings.Join(got, ", ")
		}
		select {
		case <-cursor.Ready():
		case <-time.After(longEnough):
			t.Fatalf("%d events, and then no more: %v", n, got)
		}
	}
}

// since returns the events after a revision, in the form of polled.
func (f *fakeUpstream) since(rev uint64) (events []string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, e := range f.mu.history {
		if e.rev > rev {
			events = append(events, fmt.Sprintf("%s %s %d", e.kind, e.name(), e.rev))
		}
	}
	return events
}

func mustFilter(t *testing.T, c *watchcache.Cache) *filter.Filter {
	t.Helper()
	f, err := filter.New(c.Resource(), "", nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	return f
}
