package hostile

import (
	"context"
	"fmt"
	"os"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/watchproxy/watchproxy/bench/cluster"
)

// ownPID is the id of the attackers' process.
var ownPID = os.Getpid()

const (
	mostRatio = 3 // maximum ratio of the victim's latencies in a long run
	heapSlack = 48 << 20
)

// For every behaviour of hostile clients, the proxy stays within its memory limit, serves other
// users, and releases the resources of clients that have left.
func TestHostile(t *testing.T) {
	w := newWorld(t, memoryLimit)
	w.warm(t)
	w.victim = startVictim(t, w, w.front)
	if atLength() {
		w.share()
	}
	w.calm(t)
	began := time.Now()
	var rows []string
	for _, b := range behaviours() {
		t.Run(b.name, func(t *testing.T) { rows = append(rows, w.row(t, b)) })
		if t.Context().Err() != nil {
			break
		}
		w.revive(t)
		if atLength() {
			w.idle(t)
		}
	}
	t.Logf("all rows took %v", time.Since(began).Round(time.Second))
	last := w.victim.tell()
	if last.Seen == 0 {
		t.Error("the victim's watch has shown nothing")
	}
	w.report(t, rows, last)
}

// warm fills the caches and opens the connections to upstream, as ordinary use does.
func (w *world) warm(t *testing.T) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	a := w.newAttack(ctx, behaviour{clients: 1})
	defer a.leave()
	c := a.client(http1)
	for _, path := range []string{
		cachedList, attackedConfigMaps + "?resourceVersion=0", deniedPodsPath + "?resourceVersion=0", counterPath + "?resourceVersion=0",
		"/api", "/version", attackedPodsPath + "?fieldSelector=spec.unknown%3Da",
	} {
		a.ask(c, "GET", path, bearer(w.api.Token), nil)
	}
	a.ask(c, "GET", cachedList, asAttacker("Accept-Encoding", "gzip"), nil)
}

// calm measures the victim without attackers.
func (w *world) calm(t *testing.T) {
	t.Helper()
	w.victim.tell()
	cluster.Pause(t.Context(), max(*length, 2*time.Second))
	w.undisturbed = w.victim.tell()
	if len(w.undisturbed.Failed) > 0 || w.undisturbed.Gets == 0 {
		t.Fatalf("without attackers the victim sees %d answers, %q", w.undisturbed.Gets, w.undisturbed.Failed)
	}
}

// revive replaces a proxy that has ended, and a victim that has failed.
func (w *world) revive(t *testing.T) {
	t.Helper()
	if !w.front.alive() {
		w.front = w.startFront(t)
		w.warm(t)
		w.victim.end()
		w.victim = startVictim(t, w, w.front)
	} else if w.victim.hurt {
		w.victim.end()
		w.victim = startVictim(t, w, w.front)
	}
	if atLength() {
		w.share()
	}
}

// row runs a behaviour, checks the proxy and the victim, and returns the line of the table.
func (w *world) row(t *testing.T, b behaviour) string {
	// The context has no deadline, because a dial would fail before a deadline.
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	a := w.newAttack(ctx, b)
	before, spent := a.begin(t)
	w.victim.tell()
	began := time.Now()
	timer := time.AfterFunc(*length, cancel)
	defer timer.Stop()
	a.run()
	cancel()
	seen := w.victim.tell()
	left := time.Now()
	peak, err := a.peak()
	if err != nil {
		a.leave()
		t.Fatalf("the proxy has ended: %v; so far: %s", err, a.codes())
	}
	now, err := a.spent()
	if err != nil {
		t.Error(err)
	}
	a.leave()
	after := a.settle(t, before)
	settled := time.Now()
	after.heap = a.heapNow(t)
	// A body that was being made when its client left is dropped when it is ready.
	for end := time.Now().Add(recoveryLimit); after.heap > before.heap+heapSlack && time.Now().Before(end) && !t.Failed(); {
		cluster.Pause(t.Context(), time.Second)
		after.heap = a.heapNow(t)
	}
	a.judge(t, before, after, peak, seen)
	line := fmt.Sprintf("| %s | %d | %d | %d | %s | %d | %.1f | %.1f | %s | %s | %s | %s | %s | %d → %d |",
		b.name, a.clients, a.rate, a.sent.Load(), a.codes(), peak>>20, milliseconds(seen.P99), w.ratio(seen), w.verdict(seen),
		fmt.Sprintf("%.1f, %.1f, %.1f", (now[0]-spent[0]).Seconds(), (now[1]-spent[1]).Seconds(), (now[2]-spent[2]).Seconds()),
		between(before.goroutines, after.goroutines), between(before.descriptors, after.descriptors), between(before.connections, after.connections),
		before.heap>>20, after.heap>>20)
	t.Log(line)
	t.Logf("the attack took %v, the recovery %v", left.Sub(began).Round(time.Millisecond), settled.Sub(left).Round(time.Millisecond))
	return line
}

func between(before, after int) string { return fmt.Sprintf("%d → %d", before, after) }

func milliseconds(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

// ratio returns the victim's latency divided by its latency without attackers.
func (w *world) ratio(seen report) float64 { return float64(seen.P99) / float64(w.undisturbed.P99) }

func (w *world) verdict(seen report) string {
	if w.ratio(seen) > mostRatio {
		return fmt.Sprintf("**over %d ×**", mostRatio)
	}
	return ""
}

// begin measures the proxy before the attack.
func (a *attack) begin(t *testing.T) (before census, spent [3]time.Duration) {
	t.Helper()
	err := a.collect()
	if err == nil {
		before, err = a.census(t)
	}
	if err == nil {
		err = cluster.ResetPeak(a.proxy.PID())
	}
	if err == nil {
		spent, err = a.spent()
	}
	if err != nil {
		t.Fatalf("before the attack: %v", err)
	}
	return before, spent
}

// judge fails the row if the proxy or the victim has not met a condition.
func (a *attack) judge(t *testing.T, before, after census, peak int64, seen report) {
	t.Helper()
	if !after.within(before) {
		groups, _ := a.profile("goroutine?debug=1")
		const enough = 3000
		t.Errorf("the attackers have left, but of %+v the proxy has come to %+v; its goroutines:\n%.*s", before, after, enough, groups)
	}
	if after.heap > before.heap+heapSlack {
		t.Errorf("the attackers have left, but the heap went from %d to %d MiB", before.heap>>20, after.heap>>20)
	}
	if peak > memoryLimit {
		t.Errorf("the proxy took %d MiB of %d", peak>>20, memoryLimit>>20)
	}
	if len(seen.Failed) > 0 {
		a.w.victim.hurt = true
		t.Errorf("the victim: %s", strings.Join(seen.Failed, "; "))
	}
	if seen.Gets == 0 {
		t.Error("the victim has not read anything")
	}
	if len(a.mu.bad) > 0 {
		t.Errorf("answers that nobody may get: %v", a.mu.bad)
	}
	if a.sent.Load() == 0 {
		t.Error("no request was sent, so nothing was shown")
	}
}

// heapNow returns the size of the heap after a collection.
func (a *attack) heapNow(t *testing.T) int64 {
	t.Helper()
	err := a.collect()
	if err == nil {
		var c census
		if c, err = a.census(t); err == nil {
			return c.heap
		}
	}
	t.Errorf("after the attack: %v", err)
	return 0
}

const tableHead = `| behaviour | clients | turns/s | sent | answers | peak memory (MiB) | victim's p99 (ms) | times p99 without attackers | | CPU (s): attackers, proxy, apiserver | goroutines | descriptors | sockets | heap (MiB) |
|---|---|---|---|---|---|---|---|---|---|---|---|---|---|
`

// report writes the table to the file named by the flag report.
func (w *world) report(t *testing.T, rows []string, last report) {
	t.Helper()
	if *reportFile == "" {
		return
	}
	rows = slices.DeleteFunc(rows, func(row string) bool { return row == "" })
	over := 0
	for _, row := range rows {
		if strings.Contains(row, "**over") {
			over++
		}
	}
	var b strings.Builder
	fmt.Fprintf(&b, "%s, %v per row, %d processors, %d pods that attackers can list. The proxy's limits: %d MiB of memory, 2 processors.\n",
		time.Now().UTC().Format(time.DateOnly), *length, runtime.NumCPU(), attackedPods(), memoryLimit>>20)
	fmt.Fprintf(&b, "Without attackers, the victim's get took %.1f ms (p50) and %.1f ms (p99). Its watch has shown %d events without a gap.\n",
		milliseconds(w.undisturbed.P50), milliseconds(w.undisturbed.P99), last.Seen)
	fmt.Fprintf(&b, "In %d of %d rows, the victim's p99 is more than %d × its p99 without attackers.\n", over, len(rows), mostRatio)
	b.WriteString("Attackers, victim, proxy and apiserver share the processors here. In production, a proxy has processors of its own. So\n" +
		"the attackers are paced and use at most one processor, and they and the apiserver run only when no other process wants to\n" +
		"(SCHED_IDLE). A turn is a connection, a request or a bundle of at most 100 frames.\n")
	b.WriteString("Answers: `cut` is a connection that ended without an answer, `no connection` a refused connection, `reset` an HTTP/2\n" +
		"stream that the proxy ended, and `goaway` an HTTP/2 connection that the proxy ended.\n")
	b.WriteString("An arrow shows the values before the row and after its clients have left. Sockets include those to the apiserver.\n\n")
	b.WriteString(tableHead + strings.Join(rows, "\n") + "\n")
	if err := os.WriteFile(*reportFile, []byte(b.String()), 0o644); err != nil {
		t.Error(err)
	}
}
