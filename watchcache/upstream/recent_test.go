package upstream

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/tidwall/gjson"
	"go.uber.org/zap/zaptest"

	"github.com/watchproxy/watchproxy/watchcache"
	"github.com/watchproxy/watchproxy/watchcache/cachetest"
	"github.com/watchproxy/watchproxy/watchcache/upstream/feed"
)

// Many readers come at any time and may leave before their run has ended. Meanwhile watches stall,
// break and lose their history, upstream fails, the ledger starts over, and etcd is restored. Each
// answer is a state that upstream has had at the reader's arrival or later.
func TestReadsAreMostRecent(t *testing.T) {
	seed := cachetest.Seed(t)
	runs := map[string]float64{}
	for round := range cachetest.Rounds(12, 60) {
		t.Run(fmt.Sprint(round), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				objects := []int{fewObjects, feed.SmallObjects + 1, feed.SmallObjects + 1}[round%3]
				readAtAnyTime(t, objects, rand.New(rand.NewPCG(seed, uint64(round))), runs)
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

// readAtAnyTime counts the freshness runs by outcome.
func readAtAnyTime(t *testing.T, objects int, random *rand.Rand, runs map[string]float64) {
	t.Helper()
	f, registry := newFake(), prometheus.NewRegistry()
	fill(f, objects)
	options := manyOptions
	options.Ledger = true
	feeds := newFeeds(t, f, registry, options, zaptest.NewLogger(t))
	defer feeds.Stop()
	source := openFrom(t, feeds)
	startLedger(t, f, source)
	readFor(t, f, source, 10*time.Second)
	addRuns(t, registry, runs, -1)
	var readers sync.WaitGroup
	defer readers.Wait()
	restores, answers := 0, 0
	read := func() {
		rev, history := f.revision(), restores
		waits, leaves := random.IntN(2) == 0, time.Duration(random.IntN(3000))*time.Millisecond
		readers.Go(func() {
			ctx, cancel := context.WithTimeout(t.Context(), leaves)
			defer cancel()
			s, err := source.Fresh(ctx, waits)
			if err != nil {
				return
			}
			f.mu.Lock()
			defer f.mu.Unlock()
			if history != restores {
				return
			}
			answers++
			if s.ResourceVersion() < rev {
				t.Errorf("state at %d, upstream was at %d", s.ResourceVersion(), rev)
			}
			sameAs(t, f.stateAtLocked(s.ResourceVersion()), s)
		})
	}
	for range 600 {
		switch random.IntN(20) {
		case 0, 1:
			f.set(fmt.Sprintf("o%03d", random.IntN(10)), fmt.Sprint(random.Int()))
		case 2:
			f.remove(fmt.Sprintf("o%03d", random.IntN(10)))
		case 3, 4, 5:
			f.other("leases")
		case 6:
			f.other("namespaces")
		case 7:
			rarely(random, 4, f.elsewhere)
		case 8:
			f.stall(random.IntN(4) == 0)
		case 9:
			held := []string{"leases", "namespaces", "", "", "", "", "", ""}[random.IntN(8)]
			f.locked(func() { f.mu.held = held })
		case 10:
			f.delays(time.Duration(random.IntN(50)) * time.Millisecond)
		case 11, 12, 13:
			time.Sleep(time.Duration(random.IntN(500)) * time.Millisecond)
		case 14:
			rarely(random, 30, func() { f.cutStreams(random.IntN(2) == 0) })
			rarely(random, 30, source.Ledger.Forget)
			rarely(random, 40, func() {
				f.locked(func() { f.mu.down = errDown })
				time.Sleep(time.Second)
				f.locked(func() { f.mu.down = nil })
			})
			rarely(random, 100, func() {
				f.locked(func() { restores++ })
				f.restore(50, 0)
				f.cutStreams(false)
				time.Sleep(10 * time.Second)
			})
		default:
			read()
		}
	}
	f.locked(func() { f.mu.stalled, f.mu.held = false, "" })
	readers.Wait()
	if answers == 0 {
		t.Error("no answers")
	}
	addRuns(t, registry, runs, 1)
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

func rarely(random *rand.Rand, of int, do func()) {
	if random.IntN(of) == 0 {
		do()
	}
}

// sameAs checks that a state has the given objects.
func sameAs(t *testing.T, want map[string]string, s watchcache.Snapshot) {
	t.Helper()
	if s.Len() != len(want) {
		t.Errorf("%d objects at %d, upstream had %d", s.Len(), s.ResourceVersion(), len(want))
	}
	for o := range s.Objects("", "") {
		if rv := gjson.Get(want[o.Name()], "metadata.resourceVersion").String(); rv != strconv.FormatUint(o.ResourceVersion(), 10) {
			t.Errorf("at %d, %s is of %d, upstream had %q", s.ResourceVersion(), o.Key(), o.ResourceVersion(), rv)
		}
	}
}
