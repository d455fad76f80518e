package upstream

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tidwall/gjson"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/watchproxy/watchproxy/watchcache"
	"github.com/watchproxy/watchproxy/watchcache/object"
	"github.com/watchproxy/watchproxy/watchcache/upstream/feed"
	"github.com/watchproxy/watchproxy/watchcache/upstream/fresh"
)

// fewObjects are in a small collection.
const fewObjects = 100

// openFeed returns a feed that has synced with upstream.
func openFeed(t *testing.T, f *fakeUpstream, change ...func(*feed.Options)) *fresh.Feed {
	t.Helper()
	return openFrom(t, start(t, f, change...))
}

// filledFeed returns the feed of an upstream with a number of objects.
func filledFeed(t *testing.T, objects int, change ...func(*feed.Options)) (*fakeUpstream, *fresh.Feed) {
	t.Helper()
	f := newFake()
	fill(f, objects)
	return f, openFeed(t, f, change...)
}

func openFrom(t *testing.T, feeds *Feeds) *fresh.Feed {
	t.Helper()
	return openOf(t, feeds, configmaps)
}

// openOf opens the feed of a resource, without a resourceVersion to resume from.
func openOf(t *testing.T, feeds *Feeds, gvr schema.GroupVersionResource) *fresh.Feed {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), longEnough)
	defer cancel()
	feed, err := feeds.Open(ctx, gvr, object.Want{}, object.JSON, 0)
	if err != nil {
		t.Fatal(err)
	}
	return feed
}

// readFresh reads, and checks that upstream had the state at the time of the call or later.
func readFresh(t *testing.T, f *fakeUpstream, feed *fresh.Feed) watchcache.Snapshot {
	t.Helper()
	rev := f.revision()
	s, err := feed.Fresh(t.Context(), true)
	if err != nil {
		t.Fatal(err)
	}
	if s.ResourceVersion() < rev {
		t.Errorf("state at %d, upstream was at %d", s.ResourceVersion(), rev)
	}
	return s
}

// same checks that a state equals upstream's present state.
func same(t *testing.T, f *fakeUpstream, s watchcache.Snapshot) {
	t.Helper()
	want := f.state()
	for o := range s.Objects("", "") {
		if upstream := gjson.Get(want[o.Name()], "metadata.resourceVersion").String(); upstream != strconv.FormatUint(o.ResourceVersion(), 10) {
			t.Errorf("%s is at %d, upstream at %q", o.Key(), o.ResourceVersion(), upstream)
		}
		delete(want, o.Name())
	}
	if len(want) > 0 {
		t.Errorf("the state misses %v", want)
	}
}

func fill(f *fakeUpstream, n int) {
	for i := range n {
		f.set(fmt.Sprintf("o%03d", i), "v")
	}
}

// A small collection is listed. A large collection is watched on the side for a moment. In each case,
// watches are told each change once: by the side watch, or by the main stream if the list has shown it
// to readers before.
func TestFreshAsksForTheLeast(t *testing.T) {
	const small, large = fewObjects, feed.SmallObjects + 1
	for name, test := range map[string]struct {
		objects, reads        int
		stalled               bool // the collection has changed, and the stream is behind
		probes, lists, asides int
	}{
		"small":          {objects: small, reads: 1, probes: 1, lists: 1},
		"small, stalled": {objects: small, reads: 1, stalled: true, probes: 1, lists: 1},
		"large":          {objects: large, reads: 3, probes: 3, asides: 3},
		"large, stalled": {objects: large, reads: 1, stalled: true, probes: 1, asides: 1},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f, feed := filledFeed(t, test.objects)
				probes := f.count("probe")
				cursor := watchAll(t, feed.Cache())
				told := func(want map[string]string) {
					t.Helper()
					if seen := drain(t, cursor); !maps.Equal(seen, want) {
						t.Errorf("the watch was told %v, want %v", seen, want)
					}
				}
				f.stall(test.stalled)
				now, later := map[string]string{}, map[string]string{}
				if test.stalled {
					f.remove("o001")
					f.set("o002", "changed")
					f.set("o002", "again")
					f.set("p", "new")
					later = map[string]string{"o001": "DELETED", "o002": "MODIFIED MODIFIED", "p": "ADDED"}
				}
				for range test.reads {
					f.elsewhere()
					began := time.Now()
					same(t, f, readFresh(t, f, feed))
					most := 100 * time.Millisecond
					if test.asides > 0 {
						most = 1500 * time.Millisecond
						now, later = later, now
					}
					if took := time.Since(began); took > most {
						t.Errorf("took %s", took)
					}
				}
				if f.count("probe") != probes+test.probes || f.count("list") != test.lists || f.count("side-watch") != test.asides {
					t.Errorf("upstream saw %v", f.mu.requests)
				}
				told(now)
				f.stall(false)
				synctest.Wait()
				told(later)
				f.set("last", "1")
				synctest.Wait()
				told(map[string]string{"last": "ADDED"})
			})
		})
	}
}

// A list does not wait for a side watch: upstream answers it. Nor does a list that comes during the side
// watch. The next one after it is answered.
func TestListsDoNotWaitForASideWatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, feed := filledFeed(t, feed.SmallObjects+1)
		f.elsewhere()
		for range 3 {
			began := time.Now()
			if _, err := feed.Fresh(t.Context(), false); !errors.Is(err, fresh.ErrNotFresh) {
				t.Errorf("got %v", err)
			}
			if took := time.Since(began); took > 50*time.Millisecond {
				t.Errorf("a list waited for %s", took)
			}
			time.Sleep(10 * time.Millisecond)
		}
		time.Sleep(5 * time.Second)
		if s, err := feed.Fresh(t.Context(), false); err != nil || s.ResourceVersion() != f.revision() {
			t.Errorf("%d, %v", s.ResourceVersion(), err)
		}
		if n := f.count("side-watch"); n != 1 {
			t.Errorf("%d side watches", n)
		}
	})
}

// A side watch may take its time after upstream has answered it, however slowly.
func TestSlowSideWatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, feed := filledFeed(t, feed.SmallObjects+1)
		f.elsewhere()
		f.locked(func() { f.mu.slow = map[string]time.Duration{"side-watch": 4500 * time.Millisecond} })
		same(t, f, readFresh(t, f, feed))
		if n := f.count("side-watch"); n != 1 {
			t.Errorf("%d side watches", n)
		}
	})
}

// crowdSeconds is how long a crowd comes.
const crowdSeconds = 2

// crowd reads a number of times, after a write each. Each read may take most. It returns how many failed.
func crowd(t *testing.T, f *fakeUpstream, source *fresh.Feed, readers int, most time.Duration) int64 {
	t.Helper()
	var all sync.WaitGroup
	var failed atomic.Int64
	for i := range readers {
		all.Go(func() {
			time.Sleep(time.Duration(i) * crowdSeconds * time.Second / time.Duration(readers))
			f.set("o001", fmt.Sprint(i)) // a side watch brings it at once
			rev, began := f.revision(), time.Now()
			s, err := source.Fresh(t.Context(), true)
			if took := time.Since(began); took > most {
				t.Errorf("a reader waited for %s", took)
			}
			if err != nil {
				failed.Add(1)
			} else if s.ResourceVersion() < rev {
				t.Errorf("state at %d, upstream was at %d", s.ResourceVersion(), rev)
			}
		})
	}
	all.Wait()
	return failed.Load()
}

// With any number of readers, at most one probe is in flight, and probes gather readers for 15 ms. No reader
// gets a response based on a probe that was sent before the reader came. No reader waits for more than two
// probes and the pause between them.
func TestReadersShareRuns(t *testing.T) {
	const takes = 2 * time.Millisecond
	for _, readers := range []int{1, 20, 1000, 10000} {
		t.Run(fmt.Sprint(readers), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f, source := filledFeed(t, 3)
				f.delays(takes)
				before := f.count("probe")
				failed := crowd(t, f, source, readers, 2*takes+15*time.Millisecond)
				most := min(readers, crowdSeconds*int(time.Second/takes)+1)
				if n := f.count("probe") - before; failed > 0 || n > most || readers >= 10000 && n > crowdSeconds*75 {
					t.Errorf("%d probes for %d readers, %d failed", n, readers, failed)
				}
			})
		})
	}
}

// The requests of all resources together stay within the budget. Unused budget of up to one second is saved.
// If the stream does not bring the probes' revisions, upstream is asked for more than probes: a side watch
// costs as much as a probe, and so do a list and each 100 of its objects.
func TestRequestsKeepToTheBudget(t *testing.T) {
	const budget, readers = 50, 1000
	for name, c := range map[string]struct {
		objects, costs int
		stalled        bool
		most           time.Duration
	}{
		"probes":       {fewObjects + 1, 2, false, 4 * time.Second / budget},
		"lists":        {feed.SmallObjects, 6, true, time.Hour},
		"side watches": {feed.SmallObjects + 1, 1, true, time.Hour},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFake()
				fill(f, c.objects)
				feeds := start(t, f)
				options := *feeds.shared.Options.Load()
				options.MaxProbes = budget
				feeds.SetOptions(options)
				sources := []*fresh.Feed{openFrom(t, feeds)}
				if !c.stalled {
					sources = append(sources, openOf(t, feeds, events))
				}
				f.stall(c.stalled)
				var all sync.WaitGroup
				for _, source := range sources {
					all.Go(func() {
						if failed := crowd(t, f, source, readers, c.most); failed > 0 && !c.stalled {
							t.Errorf("%d readers failed", failed)
						}
					})
				}
				all.Wait()
				spent := f.count("probe") + c.costs*(f.count("list")+f.count("side-watch"))
				if spent > (crowdSeconds+2)*budget || spent < crowdSeconds*budget {
					t.Errorf("requests of %d probes' price in %d seconds, the budget is %d a second", spent, crowdSeconds, budget)
				}
			})
		})
	}
}

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
				f, feed := filledFeed(t, objects)
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
