package faults

import (
	"fmt"
	"testing"
	"time"

	"github.com/watchproxy/watchproxy/bench/cluster"
)

// scenario is a fault, and what clients may notice of it.
type scenario struct {
	name    string
	short   bool // runs without -everything
	disturb func(t *testing.T, w *world)
	// own, if set, starts a separate apiserver for this scenario, with these options.
	own *cluster.Options
	// forgets says that upstream loses its history. The proxy then sends the changes as a
	// difference of two states.
	forgets bool
	// relists limits the relists.
	relists float64
	// again says that watches may get 410.
	again bool
	// custom says that the scenario needs a custom resource.
	custom bool
}

// lasting is the duration of most faults, and suspended that of a suspension.
const (
	lasting   = 3 * time.Second
	suspended = 20 * time.Second
)

// repeated injects a fault several times.
func repeated(times int, every time.Duration, do func(*world)) func(*testing.T, *world) {
	return func(_ *testing.T, w *world) {
		for range times {
			do(w)
			time.Sleep(every)
		}
	}
}

// during begins a fault and ends it after a while.
func during(begin, end func(*world)) func(*testing.T, *world) {
	return func(_ *testing.T, w *world) {
		begin(w)
		time.Sleep(lasting)
		end(w)
	}
}

func scenarios() []scenario {
	var all []scenario
	for _, side := range []struct {
		name string
		of   func(*world) *cluster.Relay
	}{{"upstream", func(w *world) *cluster.Relay { return w.up }}, {"clients", func(w *world) *cluster.Relay { return w.down }}} {
		of := side.of
		add := func(name string, short bool, disturb func(*testing.T, *world)) {
			all = append(all, scenario{name: side.name + ": " + name, short: short, disturb: disturb})
		}
		add("connections cut", false, repeated(10, 200*time.Millisecond, func(w *world) { of(w).End(false) }))
		add("connections reset", true, repeated(10, 200*time.Millisecond, func(w *world) { of(w).End(true) }))
		add("away", true, during(
			func(w *world) { of(w).Cut() },
			func(w *world) { of(w).Mend() },
		))
		add("frozen", false, during(
			func(w *world) { of(w).Freeze() },
			func(w *world) { of(w).Thaw() },
		))
		add("answers cut in the middle", true, repeated(10, 200*time.Millisecond, func(w *world) { of(w).Damage(cluster.Truncated) }))
		add("half closed", false, repeated(5, 300*time.Millisecond, func(w *world) { of(w).HalfClose() }))
		add("slow", false, during(
			func(w *world) { of(w).Slow(50*time.Millisecond, 200<<10) },
			func(w *world) { of(w).Slow(0, 0) },
		))
		add("frozen, then cut", false, during(
			func(w *world) { of(w).Freeze() },
			func(w *world) { of(w).End(true); of(w).Thaw() },
		))
	}
	all = append(all,
		scenario{name: "nothing", disturb: func(*testing.T, *world) { time.Sleep(lasting) }},
		scenario{name: "upstream: bytes corrupted", short: true, disturb: repeated(10, 200*time.Millisecond, func(w *world) { w.up.Damage(cluster.Corrupted) })},
		scenario{name: "apiserver restarted", own: &cluster.Options{}, forgets: true, relists: 1, disturb: restartServer(false)},
		scenario{name: "apiserver killed", own: &cluster.Options{}, forgets: true, relists: 1, disturb: restartServer(true)},
		scenario{
			name: "upstream away, history compacted", own: &cluster.Options{Flags: []string{"--etcd-compaction-interval=1s"}}, forgets: true, relists: 1,
			disturb: during(
				func(w *world) { w.up.Cut() },
				func(w *world) { w.up.Mend() },
			),
		},
		scenario{
			name: "upstream away, history compacted, apiserver restarted", own: &cluster.Options{Flags: []string{"--etcd-compaction-interval=1s"}},
			forgets: true, relists: 1, disturb: func(t *testing.T, w *world) {
				w.up.Cut()
				time.Sleep(lasting)
				restartServer(false)(t, w)
				time.Sleep(lasting)
				w.up.Mend()
			},
		},
		scenario{name: "definition changed, deleted, made again", short: true, custom: true, forgets: true, again: true, relists: 3, disturb: churn},
		scenario{name: "apiserver suspended", own: &cluster.Options{}, disturb: func(_ *testing.T, w *world) { suspend(w.api) }},
		scenario{name: "proxy suspended", disturb: func(_ *testing.T, w *world) { suspend(w.proxy) }},
		scenario{name: "proxy restarted", short: true, again: true, disturb: restartProxy(3, false)},
		scenario{name: "proxy killed", short: true, again: true, disturb: restartProxy(3, true)},
		scenario{name: "proxy restarted while upstream is slow", again: true, disturb: func(t *testing.T, w *world) {
			w.up.Slow(50*time.Millisecond, 500<<10)
			restartProxy(2, false)(t, w)
			w.up.Slow(0, 0)
		}},
	)
	return all
}

func restartServer(kill bool) func(*testing.T, *world) {
	return func(t *testing.T, w *world) { restart(t, w.api, kill) }
}

func restartProxy(times int, kill bool) func(*testing.T, *world) {
	return func(t *testing.T, w *world) {
		for i := range times {
			time.Sleep(time.Duration(1+i%3) * 500 * time.Millisecond)
			w.restart(t, kill)
		}
	}
}

// row is the verdict's line in the table.
func (v *verdict) row(name string) string {
	return fmt.Sprintf("| %s | %d | %d | %d | %d | %d | %d | %d of %d | %d | %.0f | %.0f | %.1f |",
		name, v.watchers, v.events, v.lost, v.duplicated, v.reordered, v.invented, v.stale, v.answered, v.expired, v.relists, v.lists, v.fresh)
}

// tableHead is the head of the table. The lists are those of freshness runs, which list small
// collections that neither the ledger nor the watch proves to be current.
const tableHead = `| scenario | watchers | events | lost | duplicated | reordered | invented | stale reads | 410s | relists | lists for consistent reads | seconds until up to date |
|---|---|---|---|---|---|---|---|---|---|---|---|`
