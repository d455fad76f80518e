package linearizability

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
)

// write is the n-th write to an object, counted from 1. Write 0 means no write, and so no object.
type write struct {
	n      uint32
	gone   bool // it deleted the object
	colour int  // that the object has since, by its place among colours
}

// anything is every namespace, colour or object.
const anything = -1

// in tells whether a list by a colour shows the object after the write.
func (w write) in(colour int) bool {
	return w.n > 0 && !w.gone && (colour == anything || colour == w.colour)
}

// selection is what a read asks for, as indexes into a ledger: objects of a namespace, of a colour,
// or a single object.
type selection struct{ namespace, colour, object int }

// ledger records the writes to a fixed set of objects. So it knows what a consistent read must
// show.
//
// Each object has one writer. The writer makes one write after the other, counts them, and puts the
// number into the object. So the numbers tell which of two states of an object is older.
//
// A write is settled after its acknowledgement, or after a read has shown it. No later read may
// take it back. A read that starts now must show, for each object, the write that is settled now or
// a later one.
type ledger struct {
	namespaces []string
	objects    []entry
	places     map[string]int // of objects, by namespace/name

	mu struct {
		sync.Mutex
		settled []write         // of each object the last one
		begun   []begun         // of each object
		version uint64          // the highest resourceVersion that is settled
		writes  int             // acknowledged
		next    chan<- struct{} // closed by the next acknowledgement
		waiting <-chan struct{} // the same
	}
}

// entry is an object in a ledger.
type entry struct {
	namespace int
	name      string
}

// begun has the writes that may have happened to an object.
type begun struct {
	last write
	// out has the last write after which the object was not in the collection (at 0), or not of a
	// colour (1 and up).
	out [1 + 2]uint32
}

// newLedger makes a ledger of a number of objects, by turns in each of the namespaces.
func newLedger(objects int, namespaces ...string) *ledger {
	l := &ledger{namespaces: namespaces, places: map[string]int{}}
	for i := range objects {
		e := entry{i % len(namespaces), fmt.Sprintf("object-%04d", i)}
		l.objects = append(l.objects, e)
		l.places[namespaces[e.namespace]+"/"+e.name] = i
	}
	l.mu.settled, l.mu.begun = make([]write, objects), make([]begun, objects)
	l.renew()
	return l
}

// renew makes the channel of the next acknowledgement.
func (l *ledger) renew() {
	next := make(chan struct{})
	l.mu.next, l.mu.waiting = next, next
}

// covers tells whether a selection can contain an object, independent of its colour.
func (l *ledger) covers(s selection, object int) bool {
	return (s.namespace == anything || s.namespace == l.objects[object].namespace) && (s.object == anything || s.object == object)
}

// last returns the last write to an object, for its writer.
func (l *ledger) last(object int) write {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.mu.begun[object].last
}

// begin notes a write before it is sent.
func (l *ledger) begin(object int, gone bool, colour int) write {
	l.mu.Lock()
	defer l.mu.Unlock()
	b := &l.mu.begun[object]
	b.last = write{b.last.n + 1, gone, colour}
	for c := range b.out {
		if !b.last.in(c - 1) {
			b.out[c] = b.last.n
		}
	}
	return b.last
}

// acknowledge notes that the last write to an object is acknowledged, with its resourceVersion, or
// 0 if the resourceVersion is unknown.
func (l *ledger) acknowledge(object int, version uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.mu.settled[object] = l.mu.begun[object].last
	l.mu.version = max(l.mu.version, version)
	l.mu.writes++
	close(l.mu.next)
	l.renew()
}

// acknowledged returns a channel that the next acknowledgement closes.
func (l *ledger) acknowledged() <-chan struct{} {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.mu.waiting
}

// writes returns the number of acknowledged writes.
func (l *ledger) writes() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.mu.writes
}

// floor has the settled writes at one time.
type floor struct {
	settled []write
	version uint64
}

func (l *ledger) floor() floor {
	l.mu.Lock()
	defer l.mu.Unlock()
	return floor{slices.Clone(l.mu.settled), l.mu.version}
}

// sight is the state that a read has shown.
type sight struct {
	of      selection
	version uint64   // the resourceVersion of the state, 0 for a single object
	shown   []uint32 // by object the number of the write, 0 if the object was not there
}

var (
	errStaleRead  = errors.New("stale read")
	errImpossible = errors.New("read of what never was")
)

// check compares a read's sight with the writes that were settled before the read.
func (l *ledger) check(before floor, s sight) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	for i, o := range l.objects {
		if !l.covers(s.of, i) {
			continue
		}
		shown, settled, now := s.shown[i], before.settled[i], l.mu.begun[i]
		name := l.namespaces[o.namespace] + "/" + o.name
		switch {
		case shown > now.last.n:
			return fmt.Errorf("%w: write %d of %s after %d writes", errImpossible, shown, name, now.last.n)
		case shown > 0 && shown < settled.n:
			return fmt.Errorf("%w: %s at write %d after %+v at resourceVersion %d (%d is settled)",
				errStaleRead, name, shown, settled, s.version, before.version)
		case shown == 0 && settled.in(s.of.colour) && now.out[1+s.of.colour] <= settled.n:
			return fmt.Errorf("%w: %s is not there after %+v at resourceVersion %d (%d is settled)",
				errStaleRead, name, settled, s.version, before.version)
		}
	}
	if s.of.object == anything && s.version < before.version {
		return fmt.Errorf("%w: at resourceVersion %d after %d", errStaleRead, s.version, before.version)
	}
	return nil
}

// settle notes the writes that a consistent read has shown.
func (l *ledger) settle(s sight) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for i, shown := range s.shown {
		// Only the last write can be shown before its acknowledgement.
		if last := l.mu.begun[i].last; shown > l.mu.settled[i].n && shown == last.n {
			l.mu.settled[i] = last
		}
	}
	l.mu.version = max(l.mu.version, s.version)
}

// The check finds a stale read by the objects in it, by missing objects, and by its
// resourceVersion. It accepts all other reads.
func TestLedger(t *testing.T) {
	const red, green = 0, 1
	all, single := selection{anything, anything, anything}, selection{anything, anything, 0}
	reds, greens := selection{anything, red, anything}, selection{anything, green, anything}
	elsewhere := selection{1, anything, anything}
	// Object 0 was created red, then turned green and red again. Object 1, in the other namespace,
	// was created and deleted.
	fill := func() *ledger {
		l := newLedger(2, "a", "b")
		for i, colour := range []int{red, green, red} {
			l.begin(0, false, colour)
			l.acknowledge(0, uint64(10+i))
		}
		l.begin(1, false, green)
		l.acknowledge(1, 20)
		l.begin(1, true, green)
		l.acknowledge(1, 0)
		return l
	}
	nothing := func(*ledger) {}
	for name, test := range map[string]struct {
		meanwhile func(*ledger)
		sight     sight
		want      error
	}{
		"as it is":                      {nothing, sight{all, 21, []uint32{3, 0}}, nil},
		"an older state of an object":   {nothing, sight{all, 21, []uint32{2, 0}}, errStaleRead},
		"without an object":             {nothing, sight{all, 21, []uint32{0, 0}}, errStaleRead},
		"a deleted object":              {nothing, sight{all, 21, []uint32{3, 1}}, errStaleRead},
		"an older resourceVersion":      {nothing, sight{all, 19, []uint32{3, 0}}, errStaleRead},
		"a write that was not made":     {nothing, sight{all, 21, []uint32{4, 0}}, errImpossible},
		"another namespace":             {nothing, sight{elsewhere, 21, []uint32{0, 0}}, nil},
		"a deleted one in a namespace":  {nothing, sight{elsewhere, 21, []uint32{0, 1}}, errStaleRead},
		"one of its colour":             {nothing, sight{reds, 21, []uint32{3, 0}}, nil},
		"none of its colour":            {nothing, sight{reds, 21, []uint32{0, 0}}, errStaleRead},
		"none of a former colour":       {nothing, sight{greens, 21, []uint32{0, 0}}, nil},
		"in a former colour":            {nothing, sight{greens, 21, []uint32{2, 0}}, errStaleRead},
		"a single object":               {nothing, sight{single, 0, []uint32{3, 0}}, nil},
		"an older single object":        {nothing, sight{single, 0, []uint32{1, 0}}, errStaleRead},
		"no single object":              {nothing, sight{single, 0, []uint32{0, 0}}, errStaleRead},
		"before a deletion begun since": {func(l *ledger) { l.begin(0, true, red) }, sight{all, 21, []uint32{3, 0}}, nil},
		"after a deletion begun since":  {func(l *ledger) { l.begin(0, true, red) }, sight{all, 21, []uint32{0, 0}}, nil},
		"recoloured since":              {func(l *ledger) { l.begin(0, false, green) }, sight{reds, 21, []uint32{0, 0}}, nil},
		"not by a recolouring":          {func(l *ledger) { l.begin(0, false, green) }, sight{all, 21, []uint32{0, 0}}, errStaleRead},
		"created again since":           {func(l *ledger) { l.begin(1, false, red) }, sight{all, 21, []uint32{3, 3}}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			l := fill()
			before := l.floor()
			test.meanwhile(l)
			if err := l.check(before, test.sight); !errors.Is(err, test.want) {
				t.Errorf("got %v, want %v", err, test.want)
			}
		})
	}
	t.Run("what one read showed the next one must", func(t *testing.T) {
		l := fill()
		l.begin(0, false, red) // not acknowledged
		l.settle(sight{all, 30, []uint32{4, 0}})
		for _, stale := range []sight{{all, 30, []uint32{3, 0}}, {all, 29, []uint32{4, 0}}} {
			if err := l.check(l.floor(), stale); !errors.Is(err, errStaleRead) {
				t.Errorf("got %v", err)
			}
		}
	})
}

// colours are the values of the label that reads select by.
var colours = []string{"red", "green"}
