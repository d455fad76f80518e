package fresh

import "time"

// The durations of the package, of which others are multiples. A probe ends after
// [feed.AskTimeout], and the requests after it end after twice as long.
const (
	// streamWait is how long a run waits for the stream or the ledger to show the probe's revision.
	// Halved, runs send further requests while the events are under way; doubled, each read waits
	// that much longer if upstream has nothing to send.
	streamWait = 10 * time.Millisecond
	// gatherFor delays the probe after a probe for several readers, by gatherFor for each of them
	// and by gatherMost times as much at most. Thousands of readers a second then cost 66 probes a
	// second, of 1.7 ms of upstream's processor time each. Halved, they cost twice as many;
	// doubled, they wait twice as long.
	gatherFor, gatherMost = time.Millisecond, 15
	// Needed is how long more readers are expected after a reader. For so long, the ledger runs,
	// and for a sixth of it, holes are closed. Halved, the ledger starts less often and ends
	// earlier, and more readers wait; doubled, upstream answers longer for nobody.
	Needed = time.Minute
	// rest is how long the ledger stops if it has proved nothing for twice Needed although others
	// have written, and how long no resource is watched that upstream has refused. Halved, upstream
	// gets twice as many requests in vain; doubled, the ledger is missed for longer once it would
	// be useful.
	rest = 10 * time.Minute
	// Every is the interval at which the ledger's watches and evidence are completed, and the
	// shortest pause between two runs for the holes of one cache. A broken watch opens again after
	// ten times as long. Halved, upstream gets twice as many probes until the ledger has its
	// evidence; doubled, the ledger starts later and more readers meet a hole.
	Every = 500 * time.Millisecond
	// holeWait is the time after which a missing revision is a hole. Halved, events under way look
	// like holes, and upstream is asked in vain; doubled, more readers meet the hole before it is
	// closed.
	holeWait = 20 * time.Millisecond
)
