package ledger

import (
	"math/rand/v2"
	"slices"
	"testing"
)

// A ledger never proves anything false, in whatever order resources write, however late watches
// show the writes, and even if some are never shown. It proves everything that it can.
func TestLedgerAgainstAModel(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 1))
	for range 200 {
		const resources = 5
		var l Ledger
		l.Begin()
		members(&l, 5)
		var uses []Owner // the owner of revision i+1; the last resource has no watch
		var told []bool
		var queues [resources][]uint64
		proved, could := 0, 0
		for range 2000 {
			switch random.IntN(4) {
			case 0: // a resource writes
				o := Owner(1 + random.IntN(resources))
				if o == resources && random.IntN(20) > 0 {
					o = 1
				}
				uses, told = append(uses, o), append(told, false)
				queues[o-1] = append(queues[o-1], uint64(len(uses)))
			case 1, 2: // a watch shows some of its writes
				o := random.IntN(resources - 1)
				n := random.IntN(len(queues[o]) + 1)
				if err := l.Note(Owner(o+1), queues[o][:n]...); err != nil {
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
				o, upTo := Owner(1+random.IntN(resources)), uint64(1+random.IntN(len(uses)))
				after := upTo - min(upTo, uint64(random.IntN(6)))
				want := true
				for rv := after + 1; rv <= upTo; rv++ {
					want = want && told[rv-1] && uses[rv-1] != o
				}
				if want {
					could++
				}
				if got := l.Proves(0, o, after, upTo); got != want {
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
	if l.Note(1, 5); l.Proves(0, 2, 4, 5) {
		t.Error("a ledger that has not begun proves something")
	}
	l.Begin()
	members(&l, 2)
	for rv := uint64(1); rv <= 2*ledgerSize; rv++ {
		if err := l.Note(1, rv); err != nil {
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
		if got := l.Proves(0, 2, c.after, c.upTo); got != c.want {
			t.Errorf("(%d, %d]: %t", c.after, c.upTo, got)
		}
	}
	if err := l.Note(2, 7); err != nil || l.Proves(0, 1, 6, 7) {
		t.Errorf("what came too late counts (%v)", err)
	}
	l.Forget()
	if l.Proves(1, 2, 2*ledgerSize-1, 2*ledgerSize) {
		t.Error("it has forgotten nothing")
	}
}

func TestSharedRevision(t *testing.T) {
	var l Ledger
	l.Begin()
	members(&l, 5)
	if err := l.Note(1, 5, 6); err != nil {
		t.Fatal(err)
	}
	shared := l.Note(2, 6)
	if shared == nil || shared.RV != 6 || shared.One != 1 || shared.Other != 2 {
		t.Errorf("got %+v", shared)
	}
}

// members gives owners the evidence that they share the reference's etcd.
func members(l *Ledger, n int) {
	for at := uint64(1); at <= EvidenceEnough; at++ {
		var readings []Reading
		for o := range n {
			readings = append(readings, Reading{Owner(o + 1), at})
		}
		l.Attest(readings)
	}
}

// An event whose revision is not above all earlier events and bookmarks may be made up, so it does
// not count.
func TestUses(t *testing.T) {
	u := Uses{At: 5}
	u.Event(5)
	u.Event(7)
	u.Event(7)
	u.Reached(9)
	u.Event(8)
	u.Event(9)
	u.Event(10)
	if got := u.Take(); !slices.Equal(got, []uint64{7, 10}) {
		t.Errorf("got %v", got)
	}
	if got := u.Take(); len(got) != 0 {
		t.Errorf("got %v again", got)
	}
}

// After Forget, no resource is known to share the reference's etcd until there is new evidence.
func TestLedgerForgetsEvidence(t *testing.T) {
	var l Ledger
	l.Begin()
	members(&l, 2)
	l.Forget()
	if l.Note(1, 5); l.Has(1) || l.Proves(1, 2, 4, 5) {
		t.Error("it goes by the evidence from before")
	}
	members(&l, 2)
	if l.Note(1, 6); !l.Has(1) || !l.Proves(1, 2, 5, 6) {
		t.Error("new evidence does not count")
	}
}
