package clients

import (
	"flag"
	"slices"
	"testing"
	"time"

	"github.com/watchproxy/watchproxy/bench/cluster"
	"github.com/watchproxy/watchproxy/bench/conformance"
)

var linearize = flag.Duration("linearize", 6*time.Second, "how long TestLinearizable writes and reads in each of its settings")

// readsInAMinute is how many reads four settings of a minute each have to make for TestLinearizable to mean something.
const readsInAMinute = 100_000

// linearizability is a setting in which consistent reads are put to the test.
type linearizability struct {
	name    string
	objects int
	readers int
	pace    time.Duration // between the writes of a writer
	noise   time.Duration // between writes to another resource, of which the stream says nothing
	delay   time.Duration // at most, of the proxy's own watch
	outcome string        // of freshness runs, which must occur
}

// linearizabilities are the settings: a cache that is brought up to date by its stream, or by a list if it is small, by
// another watch if it is large.
var linearizabilities = []linearizability{
	{"small", 60, 64, 20 * time.Millisecond, 100 * time.Millisecond, 0, "current"},
	{"large", 800, 64, time.Second, 3 * time.Second, 0, "current"},
	{"small and late", 60, 64, 20 * time.Millisecond, 100 * time.Millisecond, 5 * time.Second, "list"},
	{"large and late", 800, 64, time.Second, 3 * time.Second, 5 * time.Second, "side-watch"},
}

// A consistent read shows what was acknowledged before it was sent, or something later; what one read has shown no later
// one takes back; and what it shows is a state that upstream had. However late the proxy's own watch is.
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
	if *linearize >= time.Minute && total < readsInAMinute {
		t.Errorf("%d reads are too few", total)
	}
}

const (
	complaintsMax = 10
	readsMin      = 5 // of each kind
	writesMin     = 10
)

// judge compares what was read with what happened, and returns the number of consistent reads. Too few of any sort, and it
// has proved nothing.
func (o *trial) judge(t *testing.T) (reads int) {
	t.Helper()
	writes := o.ledger.writes()
	var events []conformance.Event
	eventually(t, "the witness has seen all writes", func() bool {
		events = slices.DeleteFunc(o.witness.events(), func(e conformance.Event) bool {
			_, ours := o.ledger.places[e.Key]
			return !ours
		})
		return len(events) == writes
	})
	wrong := append(o.mu.wrong, o.ledger.confirm(events, o.mu.accounts)...)
	for _, complaint := range wrong[:min(len(wrong), complaintsMax)] {
		t.Error(complaint)
	}
	if len(wrong) > complaintsMax {
		t.Errorf("and %d more", len(wrong)-complaintsMax)
	}

	var longest time.Duration
	for _, kind := range consistentReads {
		e := o.mu.kinds[kind.name]
		if e == nil || e.reads < readsMin {
			t.Fatalf("too few reads: %s: %+v", kind.name, e)
		}
		t.Logf("%7d × %-20s %6.1f ms in the mean, %6.1f ms at most",
			e.reads, kind.name, e.total.Seconds()*1000/float64(e.reads), e.longest.Seconds()*1000)
		reads += e.reads
		longest = max(longest, e.longest)
	}
	found := proxyMetrics(t, o.proxy)
	source := func(name string) float64 {
		return found.sum("watchproxy_requests_total", "resource", "configmaps", "source", name)
	}
	outcomes := found.by("watchproxy_freshness_runs_total", "outcome")
	lax := o.mu.kinds["list of any state"].reads
	t.Logf("%d reads, %.0f/s, during %d writes; requests: %v by the cache, %v by upstream; freshness runs: %v; reads of any state: %d, %d stale; states followed: %d",
		reads, float64(reads)/linearize.Seconds(), writes-o.objects, source("cache"), source("upstream"), outcomes, lax, o.mu.stale, o.mu.followed)
	if got := writes - o.objects; got < writesMin {
		t.Errorf("%d writes are too few", got)
	}
	if source("cache") < source("upstream") {
		t.Error("most reads were forwarded")
	}
	if outcomes[o.outcome] == 0 {
		t.Errorf("no freshness run ended as %q", o.outcome)
	}
	if o.mu.followed < writesMin {
		t.Errorf("%d states that watches came to are too few", o.mu.followed)
	}
	if n := found.sum("watchproxy_feed_relists_total"); n > 0 {
		t.Errorf("the cache has lost its way %v times", n)
	}
	if o.delay > 0 && o.mu.stale == 0 {
		t.Error("no read of any state was stale: the proxy's watch was not late, or nothing finds a stale read")
	}
	return reads
}
