package upstream

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/tidwall/gjson"
	"go.uber.org/zap/zaptest"

	"github.com/watchproxy/watchproxy/bench/cachetest"
	"github.com/watchproxy/watchproxy/watchcache"
	"github.com/watchproxy/watchproxy/watchcache/upstream/feed"
	"github.com/watchproxy/watchproxy/watchcache/upstream/fresh"
)

// Many readers come at any time and may leave before their run has ended, and a watch follows. Meanwhile
// upstream's watches stall, break and lose their history, upstream fails, the ledger starts over, and etcd is
// restored. Each answer is a state that upstream has had at the reader's arrival or later. The watch's events
// are in order and without repeats, and lead to upstream's state.
func TestRandomInterleavings(t *testing.T) {
	seed := cachetest.Seed(t)
	runs := map[string]float64{}
	for round := range cachetest.Rounds(12, 60) {
		t.Run(fmt.Sprint(round), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := &world{fakeUpstream: newFake(), t: t, random: rand.New(rand.NewPCG(seed, uint64(round)))}
				w.run([]int{fewObjects, feed.SmallObjects + 1, feed.SmallObjects + 1}[round%3], runs)
			})
		})
	}
	t.Log(runs)
	for _, outcome := range []string{"current", "stream", "ledger", "list", "side-watch", "failed"} {
		if runs[outcome] == 0 {
			t.Errorf("no run with the outcome %q: %v", outcome, runs)
		}
	}
}

// world is an upstream with a feed, its readers and its watch.
type world struct {
	*fakeUpstream
	t        *testing.T
	random   *rand.Rand
	source   *fresh.Feed
	readers  sync.WaitGroup
	restores int // guarded by fakeUpstream.mu
	answers  int // the same

	cursor  *watchcache.Cursor
	replica map[string]string // uids, by name
	last    uint64
}

// run counts the freshness runs by outcome.
func (w *world) run(objects int, runs map[string]float64) {
	w.t.Helper()
	w.mu.noStream = []int{0, 0, 422}[w.random.IntN(3)]
	fill(w.fakeUpstream, objects)
	options, registry := manyOptions, prometheus.NewRegistry()
	options.Ledger = true
	feeds := newFeeds(w.t, w, registry, options, zaptest.NewLogger(w.t))
	defer feeds.Stop()
	w.source = openFrom(w.t, feeds)
	w.watch()
	startLedger(w.t, w.fakeUpstream, w.source)
	readFor(w.t, w.fakeUpstream, w.source, 10*time.Second)
	addRuns(w.t, registry, runs, -1)
	for range 600 {
		w.step()
	}
	w.locked(func() { w.mu.stalled, w.mu.held = false, "" })
	w.readers.Wait()
	addRuns(w.t, registry, runs, 1)
	reached(w.t, w.fakeUpstream, w.source.Cache())
	w.follow()
	if want := uids(w.t, w.source.Cache()); !maps.Equal(w.replica, want) || w.answers == 0 {
		w.t.Errorf("%d answers; the watch leads to %.500v, upstream has %.500v", w.answers, w.replica, want)
	}
}

func (w *world) step() {
	f, name := w.fakeUpstream, fmt.Sprintf("o%03d", w.random.IntN(10))
	switch w.random.IntN(20) {
	case 0, 1:
		f.set(name, fmt.Sprint(w.random.Int()))
	case 2:
		f.remove(name)
	case 3, 4, 5:
		f.other("leases")
	case 6:
		f.other("namespaces")
	case 7:
		w.rarely(4, f.elsewhere)
	case 8:
		f.stall(w.random.IntN(4) == 0)
	case 9:
		held := []string{"leases", "namespaces", "", "", "", "", "", ""}[w.random.IntN(8)]
		f.locked(func() { f.mu.held = held })
	case 10:
		f.delays(time.Duration(w.random.IntN(50)) * time.Millisecond)
		w.follow()
	case 11, 12, 13:
		time.Sleep(time.Duration(w.random.IntN(500)) * time.Millisecond)
	case 14:
		w.rarely(15, func() { f.cutStreams(w.random.IntN(2) == 0) })
		w.rarely(30, w.source.Keeper.Ledger.Forget)
		w.rarely(40, func() {
			f.locked(func() { f.mu.down = errDown })
			time.Sleep(time.Duration(w.random.IntN(20)) * time.Second)
			f.locked(func() { f.mu.down = nil })
		})
		w.rarely(100, func() {
			f.locked(func() { w.restores++ })
			f.restore(50, 0)
			f.cutStreams(false)
			time.Sleep(10 * time.Second)
		})
	default:
		w.read()
	}
}

func (w *world) rarely(of int, do func()) {
	if w.random.IntN(of) == 0 {
		do()
	}
}

// read reads, and compares the answer with upstream's state at its revision.
func (w *world) read() {
	f := w.fakeUpstream
	rev, history := f.revision(), w.restores
	waits, leaves := w.random.IntN(2) == 0, time.Duration(w.random.IntN(3000))*time.Millisecond
	w.readers.Go(func() {
		ctx, cancel := context.WithTimeout(w.t.Context(), leaves)
		defer cancel()
		s, err := w.source.Fresh(ctx, waits)
		if err != nil {
			return
		}
		f.mu.Lock()
		defer f.mu.Unlock()
		if history != w.restores {
			return
		}
		w.answers++
		if s.ResourceVersion() < rev {
			w.t.Errorf("state at %d, upstream was at %d", s.ResourceVersion(), rev)
		}
		want := f.stateAtLocked(s.ResourceVersion())
		if s.Len() != len(want) {
			w.t.Errorf("%d objects at %d, upstream had %d", s.Len(), s.ResourceVersion(), len(want))
		}
		for o := range s.Objects("", "") {
			if rv := gjson.Get(want[o.Name()], "metadata.resourceVersion").String(); rv != strconv.FormatUint(o.ResourceVersion(), 10) {
				w.t.Errorf("at %d, %s is of %d, upstream had %q", s.ResourceVersion(), o.Key(), o.ResourceVersion(), rv)
			}
		}
	})
}

// watch begins a watch with the log's present state.
func (w *world) watch() {
	w.t.Helper()
	cache := w.source.Cache()
	s, err := cache.SnapshotAt(cache.Stats().ResourceVersion)
	if err != nil {
		w.t.Fatal(err)
	}
	cursor, err := cache.WatchAfter(mustFilter(w.t, cache), s)
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(cursor.Close)
	w.cursor, w.replica, w.last = cursor, map[string]string{}, s.ResourceVersion()
	for o := range s.Objects("", "") {
		w.replica[o.Name()] = o.UID()
	}
}

// follow reads the watch to its end. If etcd was restored, it begins another one.
func (w *world) follow() {
	w.t.Helper()
	deltas, _, err := w.cursor.Poll(nil, 1<<20, math.MaxInt)
	if w.restores > 0 && errors.Is(err, watchcache.ErrEnded) {
		w.watch()
		return
	}
	if err != nil {
		w.t.Fatal(err)
	}
	for _, d := range deltas {
		name := d.Object.Name()
		if d.RV < w.last || d.RV == w.last && d.Type != watchcache.Deleted { // removals of a relist share a resourceVersion
			w.t.Fatalf("%s of %s at %d after %d", d.Type, name, d.RV, w.last)
		}
		w.last = d.RV
		if _, had := w.replica[name]; had == (d.Type == watchcache.Added) {
			w.t.Fatalf("%s of %s, known before: %t", d.Type, name, had)
		}
		w.replica[name] = d.Object.UID()
		if d.Type == watchcache.Deleted {
			delete(w.replica, name)
		}
	}
}

// addRuns adds the numbers of freshness runs, by outcome, times a factor.
func addRuns(t *testing.T, registry *prometheus.Registry, runs map[string]float64, factor float64) {
	t.Helper()
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, family := range families {
		if family.GetName() != "watchproxy_freshness_runs_total" {
			continue
		}
		for _, m := range family.GetMetric() {
			for _, label := range m.GetLabel() {
				if label.GetName() == "outcome" {
					runs[label.GetValue()] += factor * m.GetCounter().GetValue()
				}
			}
		}
	}
}

// uids returns the uids of all cached objects, by name.
func uids(t *testing.T, cache *watchcache.Cache) map[string]string {
	t.Helper()
	all := map[string]string{}
	for o := range readSnapshot(t, cache).Objects("", "") {
		all[o.Name()] = o.UID()
	}
	return all
}
