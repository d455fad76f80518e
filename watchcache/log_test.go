package watchcache

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/watchproxy/watchproxy/watchcache/object"
	"github.com/watchproxy/watchproxy/watchcache/tree"
)

// checkLog checks L1 to L4 of a view. all contains every appended event: all[s-1] has the sequence
// number s.
func checkLog(t *testing.T, v *view, all []Event, start tree.Tree) {
	t.Helper()
	if v.first < 1 || v.end < v.first || v.end-1 > uint64(len(all)) {
		t.Fatalf("L1: log is [%d, %d) of %d events", v.first, v.end, len(all))
	}
	state := start
	if v.first > 1 {
		state = all[v.first-2].after
		if since := all[v.first-2].RV; v.since != since {
			t.Fatalf("L4: since is %d, but the last dropped event is at %d", v.since, since)
		}
	}
	if v.base != state {
		t.Fatal("L3: base is not the state before the first event")
	}
	var cost int64
	last := v.since
	for seq := v.first; seq < v.end; seq++ {
		e := v.event(seq)
		if want := &all[seq-1]; e.RV != want.RV || e.Object != want.Object || e.after != want.after {
			t.Fatalf("L1: event %d is at %d, want %d", seq, e.RV, want.RV)
		}
		if e.RV < last || e.RV > v.rv {
			t.Fatalf("L2: event %d is at %d, after %d in (%d, %d]", seq, e.RV, last, v.since, v.rv)
		}
		last, state, cost = e.RV, e.after, cost+e.cost()
	}
	if v.tree != state {
		t.Fatal("L3: tree is not the state after the last event")
	}
	if len(v.segments) > 0 && v.segments[0].base != v.first {
		t.Fatalf("log begins at %d, its first segment at %d", v.first, v.segments[0].base)
	}
	if v.cost != cost {
		t.Fatalf("log says that it costs %d, its events %d", v.cost, cost)
	}
}

// checkSearch compares after, treeAt and event with a linear search.
func checkSearch(t *testing.T, r *rand.Rand, v *view) {
	t.Helper()
	for range 20 {
		rv := v.since + r.Uint64N(v.rv-v.since+2)
		want, state := v.first, v.base
		for ; want < v.end && v.event(want).RV <= rv; want++ {
			state = v.event(want).after
		}
		if got := v.after(rv); got != want {
			t.Fatalf("L4: after(%d) is %d, want %d", rv, got, want)
		}
		if v.treeAt(rv) != state {
			t.Fatalf("treeAt(%d) is another state", rv)
		}
	}
}

func TestLog(t *testing.T) {
	r := Random(t)
	objects := make([]*object.Object, 500)
	for i := range objects {
		p := Pod{Namespace: "n", Name: fmt.Sprint(r.IntN(50)), RV: 1, Pad: r.IntN(1000)}
		if i%20 == 0 { // some are larger than a segment
			p.Pad = r.IntN(segmentCost * 3 / 2)
		}
		objects[i] = p.Object()
	}
	for _, test := range []struct {
		name   string
		limits Limits
	}{
		{"age", Limits{Age: time.Minute, Events: 1 << 30, Bytes: 1 << 40}},
		{"events", Limits{Age: time.Hour, Events: 300, Bytes: 1 << 40}},
		{"bytes", Limits{Age: time.Hour, Events: 1 << 30, Bytes: 3 << 20}},
		{"all", Limits{Age: time.Minute, Events: 500, Bytes: 4 << 20}},
		{"none", Limits{}},
		{"roomy", Roomy},
	} {
		t.Run(test.name, func(t *testing.T) { testLog(t, r, test.limits, objects) })
	}
}

// testLog writes random versions of the objects.
func testLog(t *testing.T, r *rand.Rand, limits Limits, objects []*object.Object) {
	t.Helper()
	start := tree.Build([]*object.Object{Pod{Namespace: "n", Name: "start", RV: 1}.Object()}, 0)
	v := &view{rv: 10, since: 10, tree: start, base: start, first: 1, end: 1}
	now := Noon
	type snapshot struct {
		v   *view
		all []Event
	}
	var all []Event
	var kept []snapshot
	for step := range 2500 {
		next := *v
		for range r.IntN(4) {
			o := Pick(r, objects...)
			e := Event{Type: Modified, RV: next.rv + 1 + r.Uint64N(3), Object: o, at: now.UnixNano()}
			if r.IntN(30) == 0 && next.rv > next.since {
				e.RV = next.rv // one of several deletions in a revision
			}
			if r.IntN(3) == 0 {
				e.Type = Deleted
				e.after, e.Prev = next.tree.Delete(o.Key())
			} else {
				e.after, e.Prev = next.tree.Set(o)
			}
			next.append(e)
			all = append(all, e)
		}
		if r.IntN(3) == 0 {
			next.rv += r.Uint64N(5) // a bookmark
		}
		now = now.Add(time.Duration(r.IntN(300)) * time.Millisecond)
		before := next
		next.trim(limits, now)
		checkTrim(t, &before, &next, limits, now)
		v = &next
		if step%100 == 0 || len(v.segments) < 3 {
			checkLog(t, v, all, start)
			checkSearch(t, r, v)
		}
		if step%250 == 0 {
			kept = append(kept, snapshot{v, slices.Clone(all)})
		}
	}
	if len(v.segments) < 2 && limits != (Limits{}) {
		t.Errorf("only %d segments: test does not test", len(v.segments))
	}
	if limits == Roomy && v.first != 1 {
		t.Error("trimmed without need")
	}
	if limits != Roomy && v.first == 1 {
		t.Error("never trimmed: test does not test")
	}
	for _, s := range kept { // a published view never changes
		checkLog(t, s.v, s.all, start)
	}
}

// checkTrim checks that the log is within its limits or has one segment left, and that every
// dropped segment had to be dropped.
func checkTrim(t *testing.T, before, after *view, limits Limits, now time.Time) {
	t.Helper()
	oldest := now.Add(-limits.Age).UnixNano()
	within := func(v *view) bool {
		if len(v.segments) < 2 {
			return true
		}
		// A segment is dropped when its newest event is too old.
		young := v.event(v.segments[1].base-1).at >= oldest
		return young && v.end-v.first <= uint64(limits.Events) && v.cost <= limits.Bytes
	}
	if !within(after) {
		t.Fatalf("log of %d events, %d bytes is over its bounds", after.end-after.first, after.cost)
	}
	if dropped := len(before.segments) - len(after.segments); dropped > 0 {
		// With the last dropped segment, the log would have exceeded its limits.
		more := *after
		last := before.segments[dropped-1]
		more.segments = before.segments[dropped-1:]
		more.first, more.cost = last.base, after.cost+last.cost
		if within(&more) {
			t.Fatalf("dropped a segment of %d bytes without need", last.cost)
		}
	}
	if before.end != after.end || before.rv != after.rv || before.tree != after.tree {
		t.Fatal("trim changed more than the past")
	}
}

// A gap is dropped only when watches can no longer start inside it.
func TestLogGaps(t *testing.T) {
	v := &view{rv: 10, since: 10, first: 1, end: 1}
	v.gaps = []gap{{20, 30}, {40, 50}}
	for rv := uint64(11); rv < 60; rv++ {
		for range segmentLen {
			v.append(Event{Type: Modified, RV: rv})
		}
		v.trim(Limits{}, Noon)
		for n := v.since; n <= v.rv+1; n++ {
			want := n > 20 && n < 30 || n > 40 && n < 50
			if got := v.inGap(n); got != want {
				t.Fatalf("log since %d: inGap(%d) is %t", v.since, n, got)
			}
		}
	}
	if len(v.gaps) > 0 {
		t.Errorf("gaps %v are still known", v.gaps)
	}
}

func TestEventTypeString(t *testing.T) {
	all := []string{Added.String(), Modified.String(), Deleted.String()}
	if got := strings.Join(all, " "); got != "ADDED MODIFIED DELETED" {
		t.Error(got)
	}
	defer func() {
		if recover() == nil {
			t.Error("no panic")
		}
	}()
	_ = EventType(0).String()
}
