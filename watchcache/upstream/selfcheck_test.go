package upstream

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/watchproxy/watchproxy/watchcache/object"
	"github.com/watchproxy/watchproxy/watchcache/upstream/fresh"
)

// If a cache differs from upstream for any reason, the self-check detects it, and the cache starts
// again. An equal cache does not change.
func TestSelfCheck(t *testing.T) {
	for name, c := range map[string]struct {
		spoil   func(*fakeUpstream)
		outcome string
	}{
		"same":      {func(*fakeUpstream) {}, "same"},
		"missing":   {func(f *fakeUpstream) { f.locked(func() { f.mu.objects["x"] = objectJSON("x", "uid-x", 90, "1") }) }, "different"},
		"gone":      {func(f *fakeUpstream) { f.locked(func() { delete(f.mu.objects, "a") }) }, "different"},
		"changed":   {func(f *fakeUpstream) { f.locked(func() { f.mu.objects["a"] = objectJSON("a", "uid-1", 95, "2") }) }, "different"},
		"rewritten": {func(f *fakeUpstream) { f.locked(func() { f.mu.objects["a"] = objectJSON("a", "uid-1", 101, "2") }) }, "changed"},
		"replaced":  {func(f *fakeUpstream) { f.locked(func() { f.mu.objects["a"] = objectJSON("a", "uid-9", 101, "1") }) }, "different"},
		"compacted": {func(f *fakeUpstream) { f.locked(func() { f.mu.rev++; f.mu.compacted = f.mu.rev }) }, "inconclusive"},
		"down":      {func(f *fakeUpstream) { f.locked(func() { f.mu.down = errDown }) }, "inconclusive"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFake()
				f.set("a", "1")
				f.set("b", "1")
				feeds := start(t, f)
				cache := open(t, feeds)
				epoch := cache.Stats().Epoch
				synctest.Wait() // the stream has caught up
				c.spoil(f)
				check(feeds.ctx, feeds.set.Started()[0])
				if got := testutil.ToFloat64(feeds.shared.Metrics.Checks.WithLabelValues("", "v1", "configmaps", c.outcome)); got != 1 {
					t.Errorf("%v checks are %s", got, c.outcome)
				}
				f.stall(false)
				f.locked(func() { f.mu.down = nil })
				time.Sleep(time.Minute)
				reached(t, f, cache)
				if got := cache.Stats().Epoch; (got != epoch) != (c.outcome == "different" || c.outcome == "changed") {
					t.Errorf("epoch %d after %d", got, epoch)
				}
			})
		})
	}
}

// While upstream answers a self-check, the cache is read again. The check then tells nothing about it.
func TestSelfCheckOfAnEarlierState(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		f.set("a", "1")
		feeds := start(t, f)
		cache := open(t, feeds)
		synctest.Wait() // the stream has caught up
		f.locked(func() {
			delete(f.mu.objects, "a")
			f.mu.slow = map[string]time.Duration{"list": 10 * time.Second}
		})
		time.AfterFunc(time.Second, func() {
			f.elsewhere()
			f.cutStreams(true)
		})
		check(feeds.ctx, feeds.set.Started()[0])
		if got := testutil.ToFloat64(feeds.shared.Metrics.Checks.WithLabelValues("", "v1", "configmaps", "inconclusive")); got != 1 {
			t.Errorf("%v checks are inconclusive", got)
		}
		reached(t, f, cache)
	})
}

// All feeds are checked periodically.
func TestSelfChecksComeByThemselves(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		f.set("a", "1")
		feeds := start(t, f)
		feeds.running.Go(func() { checkAll(feeds.set, time.Hour) })
		open(t, feeds)
		time.Sleep(10 * time.Hour)
		if got := f.count("list"); got < 5 || got > 20 {
			t.Errorf("%d checks in ten hours", got)
		}
	})
}

// Other columns upstream are a difference, and other JSON of no rows. The only object of a scope may appear
// and disappear. The feed starts again.
func TestOtherTablesDiffer(t *testing.T) {
	const row = `[{"cells":["a"]}]`
	for _, c := range []struct {
		before, now string
		wide        bool
		outcome     string
	}{
		{"[]", "[]", false, "same"},
		{"[]", "[]", true, "changed"},
		{row, "[]", false, "same"},
		{"[]", row, false, "same"},
		{"[]", "null", false, "changed"},
	} {
		synctest.Test(t, func(t *testing.T) {
			d := &datedUpstream{fakeUpstream: newFake()}
			d.found.Store(c.before)
			feeds := start(t, d)
			open := func() *fresh.Feed {
				f, err := feeds.Open(t.Context(), configmaps, object.Want{}, object.Table, 0)
				if err != nil {
					t.Fatal(err)
				}
				synctest.Wait() // the stream has caught up
				return f
			}
			f := open()
			d.found.Store(c.now)
			d.wide.Store(c.wide)
			check(feeds.ctx, f)
			if got := testutil.ToFloat64(feeds.shared.Metrics.Checks.WithLabelValues("", "v1", "configmaps", c.outcome)); got != 1 {
				t.Errorf("%+v: %v checks", c, got)
			}
			time.Sleep(time.Minute)
			if again := open(); (again == f) != (c.outcome == "same") {
				t.Errorf("%+v: the same feed: %t", c, again == f)
			}
		})
	}
}
