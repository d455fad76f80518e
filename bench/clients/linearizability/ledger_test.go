package linearizability

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
)

// write is the n-th write to an object, counted from 1. Write 0 means that the object has not been
// written yet.
type write struct {
	n      uint32
	gone   bool // the write deleted the object
	colour int  // index in colours of the object's colour after the write
}

// anything stands for every namespace, colour or object.
const anything = -1

// in reports whether a list by a colour shows the object after this write.
func (w write) in(colour int) bool {
	return w.n > 0 && !w.gone && (colour == anything || colour == w.colour)
}

// selection is what a read selects: the objects in a namespace, the objects with a colour, or a
// single object. The fields are indexes into a ledger.
type selection struct{ namespace, colour, object int }

// ledger records the writes to a fixed set of objects. So it knows what a consistent read must
// show.
//
// Each object has one writer. The writer makes one write after another, counts them, and stores the
// number in the object. So the numbers show which of two states of an object is older.
//
// A write is settled when it is acknowledged or when a read has shown it. No later read may show an
// older state. For each object, a read that starts now must show the last settled write or a later
// one.
type ledger struct {
	namespaces []string
	objects    []entry
	places     map[string]int // index of each object, by namespace/name

	mu struct {
		sync.Mutex
		settled []write         // for each object the last settled write
		begun   []begun         // for each object
		version uint64          // the highest settled resourceVersion
		writes  int             // number of acknowledged writes
		next    chan<- struct{} // closed by the next acknowledgement
		waiting <-chan struct{} // the same channel
	}
}

// entry is an object in a ledger.
type entry struct {
	namespace int
	name      string
}

// begun describes the writes that may have been applied to an object.
type begun struct {
	last write
	// out[0] is the number of the last write after which the object was not in the collection.
	// out[1+i] is the number of the last write after which it did not have the colour i.
	out [1 + 2]uint32
}

// newLedger creates a ledger with a number of objects, which are spread evenly over the namespaces.
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

// renew makes the channel for the next acknowledgement.
func (l *ledger) renew() {
	next := make(chan struct{})
	l.mu.next, l.mu.waiting = next, next
}

// covers reports whether a selection can contain an object, regardless of its colour.
func (l *ledger) covers(s selection, object int) bool {
	return (s.namespace == anything || s.namespace == l.objects[object].namespace) && (s.object == anything || s.object == object)
}

// last returns the last write to an object. Only the object's writer calls it.
func (l *ledger) last(object int) write {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.mu.begun[object].last
}

// begin records a write before it is sent.
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

// acknowledge records that the last write to an object was acknowledged with a resourceVersion, or
// with 0 if the resourceVersion is unknown.
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

// floor holds the writes that were settled at the same moment.
type floor struct {
	settled []write
	version uint64
}

func (l *ledger) floor() floor {
	l.mu.Lock()
	defer l.mu.Unlock()
	return floor{slices.Clone(l.mu.settled), l.mu.version}
}

// sight is the state that a read showed.
type sight struct {
	of      selection
	version uint64   // the resourceVersion of the state, 0 for a single object
	shown   []uint32 // for each object the number of the write, 0 if the object was missing
}

var (
	errStaleRead  = errors.New("stale read")
	errImpossible = errors.New("read of what never was")
)

// check compares a read's sight with the writes that were settled before the read started.
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

// settle records as settled the writes that a consistent read has shown.
func (l *ledger) settle(s sight) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for i, shown := range s.shown {
		// Only an object's last write can be shown before it is acknowledged.
		if last := l.mu.begun[i].last; shown > l.mu.settled[i].n && shown == last.n {
			l.mu.settled[i] = last
		}
	}
	l.mu.version = max(l.mu.version, s.version)
}

// The check detects a stale read by its objects, by missing objects, and by its resourceVersion, and
// a read of a state that never existed. It accepts all other reads.
func TestLedger(t *testing.T) {
	const red, green = 0, 1
	all, single := selection{anything, anything, anything}, selection{anything, anything, 0}
	reds, greens := selection{anything, red, anything}, selection{anything, green, anything}
	elsewhere := selection{1, anything, anything}
	// Object 0 was created red and then turned green and red again. Object 1, in the other
	// namespace, was created and deleted.
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
		l.begin(0, false, red) // this write is not acknowledged
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
