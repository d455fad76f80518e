package hostile

import (
	"context"
	"flag"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/watchproxy/watchproxy/bench/cluster"
)

var together = flag.Duration("together", time.Minute, "how long all behaviours go on at the same time")

// smallBudget is the memory of the proxy that all behaviours attack at the same time.
const smallBudget = 256 << 20

// All behaviours at the same time, for a long time, take no more memory than the budget, and another
// user is served. In a table of behaviours, each comes to a proxy that has recovered from the one
// before, so a sum of several has no row there.
func TestTogether(t *testing.T) {
	w := newWorld(t, smallBudget)
	w.warm(t)
	w.victim = startVictim(t, w, w.front)
	w.calm(t)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var attacks []*attack
	for _, b := range behaviours() {
		const share = 20 // all of them have the rate of a few rows
		b.rate = max(1, b.rate/share)
		attacks = append(attacks, w.newAttack(ctx, b))
	}
	before, _ := attacks[0].begin(t)
	w.victim.tell()
	var going sync.WaitGroup
	for _, a := range attacks {
		// Clients that have ended, for example because they were refused, come again.
		going.Go(func() {
			for ctx.Err() == nil {
				a.run()
				cluster.Pause(ctx, time.Second)
			}
		})
	}
	gets, most := 0, int64(0)
	for end := time.Now().Add(*together); time.Now().Before(end) && !t.Failed(); {
		cluster.Pause(ctx, min(30*time.Second, time.Until(end)))
		seen := w.victim.tell()
		gets += seen.Gets
		if len(seen.Failed) > 0 {
			t.Errorf("the victim: %s", strings.Join(seen.Failed, "; "))
		}
		peak, err := w.front.peak()
		if most = max(most, peak); err != nil || peak > smallBudget {
			t.Errorf("the proxy took %d MiB of %d, %v", peak>>20, smallBudget>>20, err)
		}
		t.Logf("the victim read %d times, p99 %v; the proxy took at most %d MiB", seen.Gets, seen.P99.Round(time.Millisecond), peak>>20)
	}
	cancel()
	going.Wait()
	sent := map[string]int64{}
	for _, a := range attacks {
		a.leave()
		sent[a.name] = a.sent.Load()
		if len(a.mu.bad) > 0 {
			t.Errorf("%s: answers that nobody may get: %v", a.name, a.mu.bad)
		}
		if a.sent.Load() == 0 {
			t.Errorf("%s: no request was sent, so nothing was shown", a.name)
		}
	}
	t.Logf("%d behaviours sent %v requests; the victim read %d times; the proxy took at most %d MiB", len(attacks), slices.Sorted(maps.Values(sent)), gets, most>>20)
	if gets == 0 {
		t.Error("the victim has not read anything")
	}
	if after := attacks[0].settle(t, before); !after.within(before) {
		groups, _ := w.front.profile("goroutine?debug=1")
		const enough = 3000
		t.Errorf("the attackers have left, but of %+v the proxy has come to %+v; its goroutines:\n%.*s", before, after, enough, groups)
	}
}
