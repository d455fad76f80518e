package upstream

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/watchproxy/watchproxy/watchcache"
	"github.com/watchproxy/watchproxy/watchcache/object"
	"github.com/watchproxy/watchproxy/watchcache/upstream/fresh"
)

// A feed begins a little more than twice as far back as the earliest client resumes, or else there, or where
// the latest client resumes, as far as upstream has the history. Clients that resume from its beginning or
// later get all events, once each and in order. The cache serves no clients until it equals upstream's state
// and knows what bookmarks look like.
func TestFeedBeginsWhereClientsGoOn(t *testing.T) {
	const now, earliest, latest = 1000, 800, 980
	for name, c := range map[string]struct {
		compacted, oldest uint64 // lists and watches reach back to
		begins            uint64
	}{
		"all":                           {1, 1, earliest - (now - earliest + 100)},
		"the earliest":                  {earliest, earliest, earliest},
		"the earliest by lists alone":   {1, earliest, earliest},
		"more than the latest":          {earliest + 1, earliest + 1, latest - (now - latest + 100)},
		"the latest":                    {latest, latest, latest},
		"the latest by lists alone":     {1, latest, latest},
		"nothing that clients need":     {latest + 1, latest + 1, now},
		"nothing, and all by its lists": {1, latest + 1, now},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFake()
				f.mu.takes = time.Millisecond // long enough for all of the clients to arrive
				f.mu.slow = map[string]time.Duration{"refusal": 120 * time.Millisecond}
				f.mu.rev = 1
				for f.revision() < now {
					switch name := fmt.Sprintf("o-%d", f.revision()%7); f.revision() % 5 {
					case 0:
						f.elsewhere()
					case 1:
						f.remove(name)
						f.elsewhere()
					default:
						f.set(name, "1")
					}
				}
				f.mu.compacted, f.mu.oldest = c.compacted, c.oldest
				rev := f.revision()
				feeds := start(t, f)
				var clients sync.WaitGroup
				var opened [2]*fresh.Feed
				for i, since := range []uint64{earliest, latest} {
					clients.Go(func() {
						var err error
						if opened[i], err = feeds.Open(t.Context(), configmaps, object.Want{}, object.JSON, since); err != nil {
							t.Error(err)
						}
					})
				}
				clients.Wait()
				cache := opened[0].Cache()
				if s := readSnapshot(t, cache); s.ResourceVersion() < rev || cache.Bookmark() == nil {
					t.Errorf("the state at %d is answered, upstream was at %d", s.ResourceVersion(), rev)
				}
				if since := cache.Stats().Since; since != c.begins {
					t.Errorf("the history begins at %d, want %d", since, c.begins)
				}
				f.set("another", "later")
				for _, since := range []uint64{earliest - 1, earliest, latest, rev} {
					cursor, err := cache.Watch(mustFilter(t, cache), since)
					if late := errors.Is(err, watchcache.ErrTooOld); late != (since < c.begins) {
						t.Errorf("a watch from %d: %v", since, err)
					}
					if err == nil {
						if want, got := f.since(since), polled(t, cursor, len(f.since(since))); !slices.Equal(got, want) {
							t.Errorf("since %d there were %v, a watch shows %v", since, want, got)
						}
						cursor.Close()
					}
				}
				reached(t, f, cache)
			})
		})
	}
}

// polled returns the next n events of a cursor as text.
func polled(t *testing.T, cursor *watchcache.Cursor, n int) (got []string) {
	t.Helper()
	for began := time.Now(); len(got) < n; synctest.Wait() {
		got = append(got, told(t, cursor)...)
		if time.Since(began) > longEnough {
			t.Fatalf("%d events, and then no more: %s", n, strings.Join(got, ", "))
		}
		time.Sleep(time.Millisecond)
	}
	return got
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

func mustFilter(t *testing.T, c *watchcache.Cache) *object.Filter {
	t.Helper()
	f, err := object.NewFilter(c.Resource(), "", nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	return f
}
