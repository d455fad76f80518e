package upstream

import (
	"context"
	"fmt"
	"maps"
	"math"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/goleak"
	"go.uber.org/zap/zaptest"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/watchproxy/watchproxy/watchcache"
	"github.com/watchproxy/watchproxy/watchcache/upstream/client"
	"github.com/watchproxy/watchproxy/watchcache/upstream/feed"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var configmaps = schema.GroupVersionResource{Version: "v1", Resource: "configmaps"}

// start returns feeds of an upstream. They stop at the end of the test.
func start(t *testing.T, way http.RoundTripper, change ...func(*feed.Options)) *Feeds {
	t.Helper()
	options := feed.Options{Limits: watchcache.Limits{Age: time.Hour, Events: 1 << 20, Bytes: 1 << 30}}
	for _, c := range change {
		c(&options)
	}
	feeds := newFeeds(t, way, prometheus.NewRegistry(), options, zaptest.NewLogger(t))
	t.Cleanup(feeds.Stop)
	return feeds
}

func open(t *testing.T, feeds *Feeds) *watchcache.Cache {
	t.Helper()
	return openFrom(t, feeds).Cache()
}

// reached waits until the cache reaches upstream's revision, and compares the states.
func reached(t *testing.T, f *fakeUpstream, cache *watchcache.Cache) {
	t.Helper()
	f.bookmark()
	ctx, cancel := context.WithTimeout(t.Context(), longEnough)
	defer cancel()
	s, err := cache.WaitFresh(ctx, f.revision())
	if err != nil {
		t.Fatalf("cache did not follow: %v", err)
	}
	got := map[string]string{}
	for o := range s.Objects("", "") {
		got[o.Name()] = strings.Replace(string(o.Bytes()), "{", `{"kind":"ConfigMap","apiVersion":"v1",`, 1)
	}
	if want := f.state(); !maps.Equal(got, want) {
		t.Fatalf("cache at %d holds %v, upstream %v", s.ResourceVersion(), got, want)
	}
}

func TestFeedFollowsWithoutAList(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		f.set("a", "1")
		feeds := start(t, f)
		cache := open(t, feeds)
		f.set("b", "1")
		f.remove("a")
		reached(t, f, cache)
		for verb, want := range map[string]int{"discover": 1, "probe": 1, "watch": 1, "list": 0} {
			if got := f.count(verb); got != want {
				t.Errorf("%d %s requests, want %d", got, verb, want)
			}
		}
		if b := cache.Bookmark(); string(b.Append(nil, 7, true)) != bookmarkJSON(7, true) || string(b.Append(nil, 7, false)) != bookmarkJSON(7, false) {
			t.Errorf("bookmarks are %s and %s", b.Append(nil, 7, true), b.Append(nil, 7, false))
		}
	})
}

// Bookmarks have the bytes that upstream's last bookmark has, also after an upgrade of the apiserver.
func TestBookmarksFollowUpstream(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		cache := open(t, start(t, f))
		newer := func(rv uint64, end bool) string {
			return strings.TrimSuffix(bookmarkJSON(rv, end), "}") + `,"immutable":false}`
		}
		for range 2 { // the second one changes nothing
			f.locked(func() {
				f.mu.rev++
				f.mu.history = append(f.mu.history, fakeEvent{f.mu.rev, "BOOKMARK", newer(f.mu.rev, false)})
			})
			if _, err := cache.WaitFresh(t.Context(), f.revision()); err != nil {
				t.Fatal(err)
			}
			for _, end := range []bool{false, true} {
				if got := string(cache.Bookmark().Append(nil, 7, end)); got != newer(7, end) {
					t.Errorf("a bookmark is %s, want %s", got, newer(7, end))
				}
			}
		}
	})
}

func TestFeedListsByPagesWhereStreamingIsRefused(t *testing.T) {
	for _, status := range []int{http.StatusUnprocessableEntity, http.StatusNotAcceptable} {
		synctest.Test(t, func(t *testing.T) {
			f := newFake()
			f.mu.noStream = status
			for i := range 2*client.PageSize + 1 {
				f.set(fmt.Sprintf("c%04d", i), "1")
			}
			cache := open(t, start(t, f))
			reached(t, f, cache)
			if got := f.count("list"); got != 3 {
				t.Errorf("%d: %d pages, want 3", status, got)
			}
		})
	}
}

// A watch that is refused with 406 is not a refusal to stream the state, so a list would not help.
func TestRefusedWatchCausesNoList(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		f.set("a", "1")
		reached(t, f, open(t, start(t, f)))
		f.locked(func() { f.mu.noWatch = true })
		f.cutStreams(false)
		time.Sleep(time.Minute)
		if watches, lists := f.count("watch"), f.count("list"); watches < 2 || lists != 0 {
			t.Errorf("%d watches, %d lists; want a refused watch and no list", watches, lists)
		}
	})
}

// A stream whose server has lost its etcd may go on with bookmarks. It is cut if it does not show an
// object that a list has shown, and the watch resumes.
func TestWatchdogReconnectsAStreamThatLagsBehind(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		source := openFrom(t, start(t, f))
		cursor := watchAll(t, source.Cache())
		minutes := func(n int) {
			for range n {
				time.Sleep(time.Minute)
				f.locked(func() {}) // so the stream sends a bookmark
			}
		}
		f.locked(func() { f.mu.deaf = 1 })
		minutes(10)
		f.set("a", "1")
		if s, err := source.Fresh(t.Context(), true); err != nil || s.Len() != 1 {
			t.Fatalf("%d objects, %v", s.Len(), err)
		}
		if got := f.count("watch"); got != 1 {
			t.Errorf("%d watches before the list", got)
		}
		minutes(4)
		if seen := drain(t, cursor); seen["a"] != "ADDED" || f.count("watch") != 2 {
			t.Errorf("a watch has seen %v after %d watches", seen, f.count("watch"))
		}
		minutes(10)
		if stats := source.Cache().Stats(); stats.Epoch != 1 || f.count("watch") != 2 {
			t.Errorf("epoch %d, %d watches", stats.Epoch, f.count("watch"))
		}
	})
}

// A stream that shows what a list has shown, although late, is not cut. What was listed before a
// restore of etcd does not count.
func TestWatchdogSparesALateStream(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		source := openFrom(t, start(t, f))
		f.locked(func() { f.mu.deaf = 1; f.mu.rev += 1000 })
		f.set("a", "1")
		if s, err := source.Fresh(t.Context(), true); err != nil || s.Len() != 1 {
			t.Fatalf("%d objects, %v", s.Len(), err)
		}
		probes := f.count("probe")
		for f.count("probe") == probes { // until the watchdog doubts the stream
			time.Sleep(time.Second)
		}
		f.locked(func() { f.mu.deaf = 0 })
		time.Sleep(time.Hour)
		if got := f.count("watch"); got != 1 {
			t.Errorf("%d watches", got)
		}
		f.restore(f.revision()-500, 0)
		time.Sleep(2 * feed.Silence) // the watchdog detects it
		watches := f.count("watch")
		f.locked(func() { f.mu.deaf = watches }) // from now on, the stream sends only old bookmarks
		for range 60 {
			time.Sleep(time.Minute)
			f.elsewhere()
		}
		if got := f.count("watch"); got != watches {
			t.Errorf("%d watches more in a quiet hour after the restore", got-watches)
		}
	})
}

// A quiet stream is not cut, even if upstream sends no bookmarks of its resource (events) while others are
// written. A stream that stays silent while its resource changes is cut, and the watch resumes.
func TestWatchdogOfSilentStreams(t *testing.T) {
	for _, resource := range []schema.GroupVersionResource{configmaps, events} {
		t.Run(resource.Resource, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFake()
				fill(f, 3)
				source := openOf(t, start(t, f), resource)
				for range 60 {
					if resource == events {
						f.elsewhere()
					}
					time.Sleep(time.Minute)
				}
				if watches, probes := f.count("watch"), f.count("probe"); watches != 1 || probes < 10 || probes > 41 {
					t.Errorf("%d watches and %d probes in a quiet hour", watches, probes)
				}
				f.stall(true)
				f.set("o001", "unseen")
				time.Sleep(5 * time.Minute)
				if got := f.count("watch"); got < 2 {
					t.Errorf("%d watches though the stream had fallen silent", got)
				}
				f.stall(false)
				time.Sleep(time.Minute)
				same(t, f, readSnapshot(t, source.Cache()))
			})
		})
	}
}

// watchAll opens a cursor on all future events until the end of the test.
func watchAll(t *testing.T, cache *watchcache.Cache) *watchcache.Cursor {
	t.Helper()
	return watchFrom(t, cache, cache.Stats().ResourceVersion)
}

func watchFrom(t *testing.T, cache *watchcache.Cache, since uint64) *watchcache.Cursor {
	t.Helper()
	cursor, err := cache.Watch(mustFilter(t, cache), since)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(cursor.Close)
	return cursor
}

// drain reads a cursor to its end and returns the events of each object, in order.
func drain(t *testing.T, cursor *watchcache.Cursor) map[string]string {
	t.Helper()
	deltas, _, err := cursor.Poll(nil, 1<<20, math.MaxInt)
	if err != nil {
		t.Fatal(err)
	}
	seen, last := map[string]string{}, uint64(0)
	for _, d := range deltas {
		if d.RV < last || d.RV == last && d.Type != watchcache.Deleted { // removals of a relist share a resourceVersion
			t.Errorf("%s of %s at %d after %d", d.Type, d.Object.Name(), d.RV, last)
		}
		last = d.RV
		seen[d.Object.Name()] = strings.TrimSpace(seen[d.Object.Name()] + " " + d.Type.String())
	}
	return seen
}
