package upstream

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"strconv"
	"sync"
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
				f := newFake()
				fill(f, test.objects)
				feed := openFeed(t, f)
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

// With any number of readers, at most one probe is in flight. No reader gets a response based on a
// probe that was sent before the reader came. No reader waits for more than two probes and the pause
// between them.
func TestReadersShareRuns(t *testing.T) {
	const takes = 2 * time.Millisecond
	for _, readers := range []int{1, 10, 100, 1000} {
		t.Run(fmt.Sprint(readers), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFake()
				f.mu.takes = takes
				fill(f, 3)
				feed := openFeed(t, f)
				before := f.count("probe")
				var all sync.WaitGroup
				for i := range readers {
					all.Go(func() {
						time.Sleep(time.Duration(i) * time.Second / time.Duration(readers))
						f.set("o001", fmt.Sprint(i))
						began := time.Now()
						readFresh(t, f, feed)
						if took := time.Since(began); took > 2*takes+15*time.Millisecond {
							t.Errorf("a reader waited for %s", took)
						}
					})
				}
				all.Wait()
				if n, most := f.count("probe")-before, min(readers, int(time.Second/takes)+1); n > most {
					t.Errorf("%d probes for %d readers within a second, want at most %d", n, readers, most)
				}
			})
		})
	}
}

// With thousands of readers a second, probes gather readers for 15 ms.
func TestProbesGatherReaders(t *testing.T) {
	for _, perSecond := range []int{1500, 5000} {
		t.Run(fmt.Sprint(perSecond), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				const seconds = 2
				f := newFake()
				fill(f, fewObjects)
				source := openFeed(t, f)
				f.delays(time.Millisecond)
				before := f.count("probe")
				var all sync.WaitGroup
				for i := range seconds * perSecond {
					all.Go(func() {
						time.Sleep(time.Duration(i) * time.Second / time.Duration(perSecond))
						readFresh(t, f, source)
					})
				}
				all.Wait()
				if n := f.count("probe") - before; n > seconds*75 {
					t.Errorf("%d probes in %d seconds", n, seconds)
				}
			})
		})
	}
}

// If the stream does not bring the probes' revisions, upstream is asked for more than probes. These
// requests stay within the budget, too: a side watch costs as much as a probe, and so do a list and
// each 100 of its objects.
func TestRequestsKeepToTheBudget(t *testing.T) {
	const budget, readers, seconds = 50, 1000, 4
	for objects, costs := range map[int]int{feed.SmallObjects: 6, feed.SmallObjects + 1: 1} {
		t.Run(fmt.Sprint(objects), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFake()
				fill(f, objects)
				source := openFeed(t, f, func(o *feed.Options) { o.MaxProbes = budget })
				f.stall(true)
				var all sync.WaitGroup
				for i := range readers {
					all.Go(func() {
						time.Sleep(time.Duration(i) * seconds * time.Second / readers)
						f.set("o001", fmt.Sprint(i)) // a side watch brings it at once
						_, _ = source.Fresh(t.Context(), true)
					})
				}
				all.Wait()
				spent := f.count("probe") + costs*(f.count("list")+f.count("side-watch"))
				if spent > (seconds+2)*budget || spent < seconds*budget {
					t.Errorf("requests of %d probes' price in %d seconds, the budget is %d a second", spent, seconds, budget)
				}
			})
		})
	}
}

// The probes of all resources together stay within the budget. Unused budget of up to one second is
// saved. A reader beyond the budget waits.
func TestProbesKeepToTheirBudget(t *testing.T) {
	const budget, readers, seconds = 50, 1000, 4
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		fill(f, fewObjects+1)
		feeds := start(t, f)
		options := *feeds.Options.Load()
		options.MaxProbes = budget
		feeds.SetOptions(options)
		before := f.count("probe")
		var all sync.WaitGroup
		for _, resource := range []schema.GroupVersionResource{configmaps, configmaps.GroupVersion().WithResource("events")} {
			feed := openOf(t, feeds, resource)
			for i := range readers {
				all.Go(func() {
					time.Sleep(time.Duration(i) * seconds * time.Second / readers)
					began := time.Now()
					readFresh(t, f, feed)
					if took := time.Since(began); took > 4*time.Second/budget {
						t.Errorf("a reader waited for %s", took)
					}
				})
			}
		}
		all.Wait()
		if n := f.count("probe") - before; n > (seconds+1)*budget+4 || n < seconds*budget {
			t.Errorf("%d probes in %d seconds, the budget is %d a second", n, seconds, budget)
		}
	})
}

// A list does not wait for a side watch: upstream answers it. Nor does a list that comes during the side
// watch. The next one after it is answered.
func TestListsDoNotWaitForASideWatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		fill(f, feed.SmallObjects+1)
		feed := openFeed(t, f)
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

// If upstream has lost the history after the cache's state, a side watch fails. The reader gets an
// error, and the feed lists again when its own stream ends.
func TestSideWatchFromALostHistory(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		fill(f, feed.SmallObjects+1)
		feed := openFeed(t, f)
		f.stall(true)
		f.set("o001", "changed")
		f.locked(func() { f.mu.oldest = f.mu.rev })
		if _, err := feed.Fresh(t.Context(), true); !errors.Is(err, fresh.ErrNotFresh) {
			t.Errorf("got %v", err)
		}
		f.stall(false)
		f.cutStreams(true)
		time.Sleep(time.Second)
		same(t, f, readFresh(t, f, feed))
	})
}
