package upstream

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/watchproxy/watchproxy/watchcache"
)

// Clients that go on from before a feed began get all that has happened since, in order and once, whoever of them comes
// first, by one list; unless upstream does not tell any more. The cache is what upstream has in either case.
func TestFeedBeginsWhereClientsGoOn(t *testing.T) {
	seed := *seed
	if seed == 0 {
		seed = rand.Uint64()
	}
	t.Logf("-seed %d", seed)
	for round := range 200 {
		synctest.Test(t, func(t *testing.T) {
			random := rand.New(rand.NewPCG(seed, uint64(round)))
			f := newFake()
			f.takes = time.Millisecond // in which all who come at once are there
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
			if random.IntN(4) == 0 {
				f.mu.oldest += uint64(random.IntN(20))
			}
			oldest, rev := min(f.mu.oldest, f.mu.rev), f.mu.rev
			f.mu.oldest = oldest
			f.mu.Unlock()
			// Several come at once; the earliest of them counts.
			earliest, feeds := rev, start(t, f)
			ctx, cancel := context.WithTimeout(t.Context(), longEnough)
			defer cancel()
			type opening struct {
				feed *Feed
				err  error
			}
			opened := make(chan opening)
			clients := 1 + random.IntN(3)
			for range clients {
				since := 95 + random.Uint64N(rev-95+1)
				earliest = min(earliest, since)
				go func() {
					feed, err := feeds.Open(ctx, configmaps, watchcache.JSON, since)
					opened <- opening{feed, err}
				}()
			}
			var feed *Feed
			for range clients {
				o := <-opened
				if o.err != nil {
					t.Fatalf("round %d: %v", round, o.err)
				}
				feed = o.feed
			}
			cursor, err := feed.Cache().Watch(mustFilter(t, feed.Cache()), earliest)
			switch tooOld, late := errors.AsType[*watchcache.TooOldError](err); {
			case late && earliest < oldest:
				if lists := f.count("list"); lists == 0 || lists > 2 {
					t.Errorf("round %d: %d lists, want one or two in vain", round, lists)
				}
			case late:
				t.Fatalf("round %d: %v, although upstream knows all since %d", round, tooOld, oldest)
			case err != nil:
				t.Fatalf("round %d: %v", round, err)
			default:
				defer cursor.Close()
				f.set("another", "later")
				want := f.since(earliest)
				var got []string
				for {
					deltas, _, err := cursor.Poll(nil, 100)
					if err != nil {
						t.Fatalf("round %d: %v", round, err)
					}
					for _, d := range deltas {
						got = append(got, fmt.Sprintf("%s %s %d", d.Type, d.Object.Name(), d.RV))
					}
					if len(got) >= len(want) {
						break
					}
					select {
					case <-cursor.Ready():
					case <-time.After(longEnough):
						t.Fatalf("round %d: since %d there were %v, a watch shows %v", round, earliest, want, got)
					}
				}
				if strings.Join(got, ", ") != strings.Join(want, ", ") {
					t.Errorf("round %d: since %d there were %v, a watch shows %v", round, earliest, want, got)
				}
			}
			reached(t, f, feed.Cache())
		})
	}
}

// since is what has happened since then, as a watch shows it.
func (f *fakeUpstream) since(rev uint64) (events []string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, e := range f.mu.history {
		if e.rev > rev {
			name := e.object[strings.Index(e.object, `"name":"`)+len(`"name":"`):]
			events = append(events, fmt.Sprintf("%s %s %d", e.kind, name[:strings.IndexByte(name, '"')], e.rev))
		}
	}
	return events
}

func mustFilter(t *testing.T, c *watchcache.Cache) *watchcache.Filter {
	t.Helper()
	filter, err := c.Resource().NewFilter("", nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	return filter
}
