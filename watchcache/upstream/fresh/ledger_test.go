package fresh

import (
	"math/rand/v2"
	"strconv"
	"testing"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/watchproxy/watchproxy/bench/cachetest"
	"github.com/watchproxy/watchproxy/watchcache/upstream/feed"
)

// A ledger never proves anything false. This holds if resources write in any order, if watches show
// the writes late, and if watches never show some writes. The ledger proves everything that it can.
func TestLedgerAgainstAModel(t *testing.T) {
	random := rand.New(rand.NewPCG(cachetest.Seed(t), 1))
	for range 200 {
		const resources = 5
		var l Ledger
		l.Begin()
		members(&l, 5)
		var uses []int // the owner of revision i+1; the last resource has no watch
		var told []bool
		var queues [resources][]uint64
		proved, could := 0, 0
		for range 2000 {
			switch random.IntN(4) {
			case 0: // a resource writes
				o := 1 + random.IntN(resources)
				if o == resources && random.IntN(20) > 0 {
					o = 1
				}
				uses, told = append(uses, o), append(told, false)
				queues[o-1] = append(queues[o-1], uint64(len(uses)))
			case 1, 2: // a watch shows some of its writes
				o := random.IntN(resources - 1)
				n := random.IntN(len(queues[o]) + 1)
				if err := l.Note(owner(o+1), queues[o][:n]...); err != nil {
					t.Fatal(err)
				}
				for _, rv := range queues[o][:n] {
					told[rv-1] = true
				}
				queues[o] = queues[o][n:]
			default: // a reader asks
				if len(uses) == 0 {
					continue
				}
				o, upTo := 1+random.IntN(resources), uint64(1+random.IntN(len(uses)))
				after := upTo - min(upTo, uint64(random.IntN(6)))
				want := true
				for rv := after + 1; rv <= upTo; rv++ {
					want = want && told[rv-1] && uses[rv-1] != o
				}
				if want {
					could++
				}
				if got := l.Proves(0, owner(o), after, upTo); got != want {
					t.Fatalf("proves that %d has used nothing in (%d, %d]: %t, want %t: %v, told %v", o, after, upTo, got, want, uses[after:upTo], told[after:upTo])
				} else if got && after < upTo {
					proved++
				}
			}
		}
		if could > 0 && proved == 0 {
			t.Error("nothing was proved")
		}
	}
}

// A ledger drops old revisions and does not confuse them with newer ones at the same index.
func TestLedgerIsBounded(t *testing.T) {
	var l Ledger
	if l.Note(owner(1), 5); l.Proves(0, owner(2), 4, 5) {
		t.Error("a ledger that has not begun proves something")
	}
	l.Begin()
	members(&l, 2)
	for rv := uint64(1); rv <= 2*ledgerSize; rv++ {
		if err := l.Note(owner(1), rv); err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range []struct {
		after, upTo uint64
		want        bool
	}{
		{ledgerSize, 2 * ledgerSize, true},
		{ledgerSize - 1, 2 * ledgerSize, false},
		{ledgerSize - 1, ledgerSize, false},
		{10, 11, false},
		{2 * ledgerSize, 2*ledgerSize + 1, false},
		{0, 1 << 40, false},
	} {
		if got := l.Proves(0, owner(2), c.after, c.upTo); got != c.want {
			t.Errorf("(%d, %d]: %t", c.after, c.upTo, got)
		}
	}
	if err := l.Note(owner(2), 7); err != nil || l.Proves(0, owner(1), 6, 7) {
		t.Errorf("what came too late counts (%v)", err)
	}
	l.Forget()
	if l.Proves(1, owner(2), 2*ledgerSize-1, 2*ledgerSize) {
		t.Error("it has forgotten nothing")
	}
}

func TestSharedRevision(t *testing.T) {
	var l Ledger
	l.Begin()
	members(&l, 5)
	if err := l.Note(owner(1), 5, 6); err != nil {
		t.Fatal(err)
	}
	if err := l.Note(owner(2), 6); err == nil || l.Has(owner(1)) {
		t.Errorf("got %v", err)
	}
	members(&l, 5)
	if !l.Has(owner(1)) || !l.Has(owner(2)) {
		t.Error("one shared revision excludes the resources, which may be of before a restore")
	}
}

// A resource of another etcd may have the reference's revision by accident once or twice, or for long if
// neither is written.
func TestFewCoincidencesAreNoEvidence(t *testing.T) {
	var l Ledger
	l.Begin()
	for _, at := range []uint64{5, 5, 5, 5, 6, 6, 6, 6} {
		l.Attest([]Reading{{owner(1), at}, {owner(2), at}, {owner(1), at}})
	}
	if l.Has(owner(2)) {
		t.Error("two revisions are evidence")
	}
	l.Attest([]Reading{{owner(1), 7}, {owner(2), 7}, {owner(1), 7}})
	if !l.Has(owner(2)) {
		t.Error("three revisions are no evidence")
	}
}

// If many writes come between the two probes of the reference, a resource of another etcd may lie
// between them by accident.
func TestWideWindowsAreNoEvidence(t *testing.T) {
	for _, width := range []uint64{evidenceWidth, evidenceWidth + 1} {
		var l Ledger
		l.Begin()
		for at := uint64(1); at <= EvidenceEnough; at++ {
			l.Attest([]Reading{{owner(1), at}, {owner(2), at}, {owner(1), at + width}})
		}
		if got, want := l.Has(owner(2)), width <= evidenceWidth; got != want {
			t.Errorf("a window of %d revisions is evidence: %t", width, got)
		}
	}
}

func owner(i int) feed.Owner { return feed.OwnerOf(schema.GroupResource{Resource: strconv.Itoa(i)}) }

// members records evidence that n owners share the reference's etcd.
func members(l *Ledger, n int) {
	for at := uint64(1); at <= EvidenceEnough; at++ {
		var readings []Reading
		for o := range n {
			readings = append(readings, Reading{owner(o + 1), at})
		}
		l.Attest(readings)
	}
}

// After Forget, the ledger covers no resource until there is new evidence.
func TestLedgerForgetsEvidence(t *testing.T) {
	var l Ledger
	l.Begin()
	members(&l, 2)
	if err := l.Note(owner(1), 9); err != nil {
		t.Fatal(err)
	}
	l.Forget()
	if l.Note(owner(1), 5); l.Has(owner(1)) || l.Proves(1, owner(2), 4, 5) {
		t.Error("it goes by the evidence from before")
	}
	members(&l, 2)
	if _, highest := l.Position(owner(1)); highest != 0 {
		t.Errorf("it still goes by revision %d", highest)
	}
	if l.Note(owner(1), 6); l.Proves(0, owner(2), 5, 6) {
		t.Error("it proves something of a revision that was read before")
	}
	if l.Note(owner(1), 6); !l.Has(owner(1)) || !l.Proves(1, owner(2), 5, 6) {
		t.Error("new evidence does not count")
	}
}

// The two names of events are one resource.
func TestOwnersOfEvents(t *testing.T) {
	core, other := schema.GroupResource{Resource: "events"}, schema.GroupResource{Group: "events.k8s.io", Resource: "events"}
	if feed.OwnerOf(core) != feed.OwnerOf(other) || feed.OwnerOf(core) == feed.OwnerOf(schema.GroupResource{Resource: "pods"}) {
		t.Error("they have two owners")
	}
}

// Custom resources come and go, and their evidence goes when their watches break.
func TestFormerResourcesAreForgotten(t *testing.T) {
	var l Ledger
	l.Begin()
	for round := range 100 {
		o := owner(round)
		for at := uint64(1); at <= EvidenceEnough; at++ {
			l.Attest([]Reading{{owner(0), at}, {o, at}, {owner(0), at}})
		}
		l.Forget()
	}
	if n := len(l.mu.members); n > 2 {
		t.Errorf("%d members", n)
	}
}
