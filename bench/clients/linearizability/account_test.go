package linearizability

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"testing"

	"github.com/tidwall/gjson"

	"github.com/watchproxy/watchproxy/bench/conformance"
)

// account is a short form of a sight. It is later compared with upstream's own history.
type account struct {
	of      selection
	version uint64
	tally
}

// tally is a short form of a set of objects: the number of objects and the sum of their
// fingerprints.
type tally struct {
	objects int
	sum     uint64
}

func (c *tally) add(object int, n uint32) {
	c.objects++
	c.sum += fingerprint(object, n)
}

// fingerprint uses splitmix64, so that different sets have different sums.
func fingerprint(object int, n uint32) uint64 {
	x := uint64(object)<<32 | uint64(n)
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

func (s sight) account() account {
	a := account{of: s.of, version: s.version}
	for i, n := range s.shown {
		if n > 0 {
			a.add(i, n)
		}
	}
	return a
}

// confirm returns the accounts that differ from upstream's state at the same resourceVersion.
// events are all events of the ledger's objects, in order.
func (l *ledger) confirm(events []conformance.Event, accounts []account) (wrong []string) {
	slices.SortFunc(accounts, func(a, b account) int { return cmp.Compare(a.version, b.version) })
	state := make([]write, len(l.objects))
	for _, a := range accounts {
		for ; len(events) > 0 && events[0].RV <= a.version; events = events[1:] {
			object, ours := l.places[events[0].Key]
			if !ours {
				continue
			}
			var err error
			if state[object], err = writeOf(gjson.GetBytes(events[0].Line, "object")); err != nil {
				return append(wrong, err.Error())
			}
			state[object].gone = events[0].Type == "DELETED"
		}
		var want tally
		for object, w := range state {
			if l.covers(a.of, object) && w.in(a.of.colour) {
				want.add(object, w.n)
			}
		}
		if a.tally != want {
			wrong = append(wrong, fmt.Sprintf("%+v at resourceVersion %d showed %d objects, which is not what the %d there were then looked like",
				a.of, a.version, a.objects, want.objects))
		}
	}
	return wrong
}

// writeOf returns the write that is stored in an object.
func writeOf(object gjson.Result) (write, error) {
	n, err := strconv.ParseUint(object.Get("data.n").Str, 10, 32)
	if err != nil {
		return write{}, fmt.Errorf("cannot read the number of the write from %.500s: %w", object.Raw, err)
	}
	return write{n: uint32(n), colour: slices.Index(colours, object.Get("metadata.labels.colour").Str)}, nil
}

// An account is confirmed if it matches the state at its resourceVersion, and no other state.
func TestLedgerConfirms(t *testing.T) {
	l := newLedger(3, "a", "b")
	var events []conformance.Event
	happen := func(rv uint64, kind string, object, n int, colour string) {
		e := l.objects[object]
		events = append(events, conformance.Event{
			Type: kind, RV: rv, Key: l.namespaces[e.namespace] + "/" + e.name,
			Line: fmt.Appendf(nil, `{"object":{"metadata":{"labels":{"colour":%q}},"data":{"n":"%d"}}}`, colour, n),
		})
	}
	happen(11, "ADDED", 0, 1, "red")
	happen(12, "ADDED", 1, 1, "green")
	happen(13, "MODIFIED", 0, 2, "green")
	happen(15, "DELETED", 0, 2, "green")
	const red, green = 0, 1
	for _, test := range []struct {
		namespace, colour int
		version           uint64
		shown             []uint32
		right             bool
	}{
		{anything, anything, 10, []uint32{0, 0, 0}, true},
		{anything, anything, 11, []uint32{1, 0, 0}, true},
		{anything, anything, 12, []uint32{1, 1, 0}, true},
		{anything, anything, 12, []uint32{2, 1, 0}, false},
		{anything, anything, 12, []uint32{1, 0, 1}, false},
		{anything, anything, 14, []uint32{2, 1, 0}, true},
		{anything, anything, 14, []uint32{1, 1, 0}, false},
		{anything, anything, 15, []uint32{0, 1, 0}, true},
		{anything, anything, 15, []uint32{2, 1, 0}, false},
		{0, anything, 14, []uint32{2, 0, 0}, true},
		{1, anything, 99, []uint32{0, 1, 0}, true},
		{anything, red, 12, []uint32{1, 0, 0}, true},
		{anything, red, 13, []uint32{0, 0, 0}, true},
		{0, green, 13, []uint32{2, 0, 0}, true},
		{anything, green, 13, []uint32{0, 1, 0}, false},
	} {
		s := sight{selection{test.namespace, test.colour, anything}, test.version, test.shown}
		if wrong := l.confirm(events, []account{s.account()}); (len(wrong) == 0) != test.right {
			t.Errorf("%+v: got %q", s, wrong)
		}
	}
}
