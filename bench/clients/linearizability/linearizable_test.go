package linearizability

import (
	"flag"
	"fmt"
	"runtime/debug"
	"slices"
	"testing"
	"time"

	"github.com/watchproxy/watchproxy/bench/cluster"
	"github.com/watchproxy/watchproxy/bench/conformance"
)

var linearize = flag.Duration("linearize", 4*time.Second, "how long TestLinearizable writes and reads in each of its settings")

// readsInAMinute is the number of reads that a minute of each setting must reach.
const readsInAMinute = 100_000

// raceDetector reports whether this program, and therefore the proxies that it builds, have the
// race detector.
func raceDetector() bool {
	build, _ := debug.ReadBuildInfo()
	return slices.Contains(build.Settings, debug.BuildSetting{Key: "-race", Value: "true"})
}

// linearizability is a setting for the test of consistent reads.
type linearizability struct {
	name    string
	objects int
	pace    time.Duration // mean time between two writes of a scribe
	noise   time.Duration // time between writes to another resource, which the stream does not show
	delay   delay         // between upstream and the proxy
	outcome string        // an outcome of freshness runs that must occur
	leases  bool          // the other resource is one that the proxy may watch: leases
}

// late delays streams by less than the silence (5 s) after which a feed tries another way to its state.
// The apiserver itself may take a second until it ends a state.
var late = delay{streams: 3 * time.Second, answers: 200 * time.Millisecond}

// linearizabilities are the settings. Together they use every proof of freshness. While the collection
// itself is written, the proof is normally the stream. If the stream is late or quiet, the proof is a
// list or, for a large collection, another watch. During writes to another resource, the ledger is the
// proof.
var linearizabilities = []linearizability{
	{"smaller", 60, 20 * time.Millisecond, 100 * time.Millisecond, delay{}, "list", false},
	{"small", 300, 20 * time.Millisecond, 100 * time.Millisecond, delay{}, "current", false},
	{"large", 800, time.Second, time.Second, delay{}, "side-watch", false},
	{"large, others write", 800, time.Second, 2 * time.Millisecond, delay{}, "ledger", true},
	{"small and late", 300, 20 * time.Millisecond, 100 * time.Millisecond, late, "list", false},
	{"large and late", 800, time.Second, time.Second, late, "side-watch", false},
	{"large and late, others write", 800, time.Second, 5 * time.Millisecond, delay{late.streams, late.answers, "configmaps"}, "side-watch", true},
}

// A consistent read shows all writes that were acknowledged before it, or later ones. No later read
// shows an older state. Each read shows a state that upstream had. All this holds however late the
// proxy's own watch is.
func TestLinearizable(t *testing.T) {
	api := cluster.APIServerT(t, cluster.Options{})
	total := 0
	for _, setting := range linearizabilities {
		t.Run(setting.name, func(t *testing.T) {
			trial := newTrial(t, api, setting)
			trial.run(t)
			total += trial.judge(t)
		})
	}
	t.Logf("%d reads", total)
	if *linearize >= time.Minute && total < readsInAMinute && !raceDetector() {
		t.Errorf("%d reads are too few", total)
	}
}

const (
	readsMin  = 5 // of each kind; with fewer of any kind, the test proves nothing
	writesMin = 5
	// enoughLimit limits the time after which there must be enough reads and writes.
	enoughLimit = 5 * time.Minute
)

// awaitEnough waits until there are enough reads to judge.
func (o *trial) awaitEnough(t *testing.T) {
	t.Helper()
	missing := ""
	defer func() {
		if missing != "" {
			t.Log(missing)
		}
	}()
	cluster.Within(t, enoughLimit, "there is enough to judge by", func() bool {
		missing = o.missing(o.outcomes(t))
		return missing == ""
	})
}

func (o *trial) missing(outcomes float64) string {
	o.mu.Lock()
	defer o.mu.Unlock()
	if len(o.mu.wrong) > 0 {
		return ""
	}
	for name, e := range o.mu.kinds {
		if e.reads < readsMin {
			return fmt.Sprintf("%d reads are too few: %s", e.reads, name)
		}
	}
	switch {
	case o.ledger.writes()-o.objects < writesMin:
		return "there are too few writes"
	case outcomes == 0:
		return fmt.Sprintf("no freshness run ended as %q", o.outcome)
	case o.delay.streams > 0 && o.mu.stale == 0:
		return "no read of any state was stale: the proxy's watch was not late, or nothing finds a stale read"
	}
	return ""
}

// outcomes returns how often the proxy has used the setting's proof.
func (o *trial) outcomes(t *testing.T) float64 {
	t.Helper()
	return o.Proxy.MetricsT(t).Sum("watchproxy_freshness_runs_total", cluster.Label("outcome", o.outcome))
}

// report fails the test with the first few errors.
func report(t *testing.T, wrong []string) {
	t.Helper()
	const shown = 10
	for _, complaint := range wrong[:min(len(wrong), shown)] {
		t.Error(complaint)
	}
	if len(wrong) > shown {
		t.Errorf("and %d more", len(wrong)-shown)
	}
}

// judge compares the reads with the history and returns the number of consistent reads.
func (o *trial) judge(t *testing.T) (reads int) {
	t.Helper()
	report(t, o.mu.wrong)
	writes := o.ledger.writes()
	var events []conformance.Event
	cluster.Within(t, enoughLimit, "the witness has seen all writes", func() bool {
		events = slices.DeleteFunc(slices.Clone(o.witness.Events()), func(e conformance.Event) bool {
			_, ours := o.ledger.places[e.Key]
			return !ours
		})
		return len(events) == writes
	})
	report(t, o.ledger.confirm(events, o.mu.accounts))

	for _, kind := range consistentReads {
		e := o.mu.kinds[kind.name]
		t.Logf("%7d × %-20s %6.1f ms in the mean, %6.1f ms at most",
			e.reads, kind.name, e.total.Seconds()*1000/max(float64(e.reads), 1), e.longest.Seconds()*1000)
		reads += e.reads
	}
	found := o.Proxy.MetricsT(t)
	source := func(name string) float64 {
		return found.Sum("watchproxy_requests_total", `resource="configmaps"`, cluster.Label("source", name))
	}
	t.Logf("%d reads, %.0f/s, during %d writes; requests: %v by the cache, %v by upstream; freshness runs ended as %s: %v; "+
		"reads of any state: %d, %d of them stale",
		reads, float64(reads)/o.took.Seconds(), writes-o.objects, source("cache"), source("upstream"), o.outcome, o.outcomes(t),
		o.mu.kinds[lax].reads, o.mu.stale)
	if source("cache") == 0 {
		t.Error("all reads were forwarded")
	}
	if n := found.Sum("watchproxy_feed_relists_total"); n > 0 {
		t.Errorf("the cache has lost its way %v times", n)
	}
	return reads
}
