package watchcache

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"testing"

	"k8s.io/apimachinery/pkg/labels"

	"github.com/watchproxy/watchproxy/watchcache/object"
)

// web returns a pod in the namespace a that matches all filters in this file.
func web(rv uint64) Pod { return Pod{Namespace: "a", Name: "web", UID: "u", RV: rv} }

// wantDeltas polls and compares the resourceVersions of the deltas.
func wantDeltas(t *testing.T, c *Cursor, limit int, want ...uint64) {
	t.Helper()
	deltas, _, err := c.Poll(nil, limit, math.MaxInt)
	if err != nil {
		t.Fatalf("poll: %v", err)
	}
	var got []uint64
	for _, d := range deltas {
		got = append(got, d.RV)
	}
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Fatalf("polled %v, want %v", got, want)
	}
}

// applyPods applies pods and calls between after the marks and before publication.
func applyPods(t *testing.T, c *Cache, between func(), pods ...Pod) {
	t.Helper()
	v := c.view.Load()
	next := *v
	for _, p := range pods {
		e, err := next.change(p.Set())
		if err != nil {
			t.Fatal(err)
		}
		e.at = Noon.UnixNano()
		next.append(e)
	}
	trimmed := next
	trimmed.trim(c.Limits(), Noon)
	publish := func() {
		between()
		c.Writer().publish(&trimmed)
	}
	for _, cursor := range c.interests.markAndPublish(&next, v.end, publish, nil) {
		cursor.Wake()
	}
}

func nothing() {}

// Polls that come between the writer's mark and its publication lose no event and no signal.
func TestCursorMarks(t *testing.T) {
	for _, namespace := range []string{"", "a"} {
		c := New(*Pods, Roomy)
		c.Writer().Reset(nil, 1)
		cursor := Watch(t, c, namespace, 1)
		wantDeltas(t, cursor, 10)
		applyPods(t, c, func() {
			wantDeltas(t, cursor, 10)
			wantDeltas(t, cursor, 10)
			if c.interests.mu.TryLock() { // it would load the view without the event, and get no mark
				c.interests.mu.Unlock()
				t.Error("a watch could open")
			}
		}, web(2), web(3))
		WantSignal(t, cursor)
		applyPods(t, c, func() { // the earlier mark stands
			wantDeltas(t, cursor, 1, 2)
			wantDeltas(t, cursor, 1, 3)
			wantDeltas(t, cursor, 1)
			cursor.Signalled()
		}, web(4), web(5))
		WantSignal(t, cursor)
		wantDeltas(t, cursor, 1, 4)
		wantDeltas(t, cursor, 1, 5)
		wantDeltas(t, cursor, 1)
	}
}

// A watch that registered before the writer began an epoch, and loads its view afterwards, has a mark of the
// earlier epoch.
func TestMarkOfAnEarlierEpoch(t *testing.T) {
	c := New(*Pods, Roomy)
	c.Writer().Reset(nil, 1)
	for rv := uint64(2); rv < 9; rv++ {
		applyPods(t, c, nothing, web(rv))
	}
	cursor := Watch(t, c, "a", 8)
	applyPods(t, c, nothing, web(9))
	c.Writer().Reset(nil, 20)
	cursor.epoch, cursor.next, cursor.behind = c.view.Load().epoch, c.view.Load().end, true
	cursor.Signalled()
	wantDeltas(t, cursor, 10)
	for rv := uint64(21); rv < 40; rv++ {
		applyPods(t, c, nothing, web(rv))
		WantSignal(t, cursor)
		wantDeltas(t, cursor, 10, rv)
	}
}

// A watch starts at a resourceVersion that the cache has not reached. Then a relist skips that
// start. The relist shows the gap's deletions below the start. So the watch must end, because it
// would miss them.
func TestCursorStartSwallowedByGap(t *testing.T) {
	c := New(*Pods, Roomy)
	c.Writer().Reset([]*object.Object{web(5).Object()}, 10)
	cursor := Watch(t, c, "", 15)
	narrow := Watch(t, c, "b", 15)
	atEnd := Watch(t, c, "", 20)
	for _, cursor := range []*Cursor{cursor, narrow, atEnd} {
		wantDeltas(t, cursor, 10)
	}
	if err := c.Writer().Replace(nil, 20, Noon); err != nil {
		t.Fatal(err)
	}
	for name, cursor := range map[string]*Cursor{"wide": cursor, "narrow": narrow} {
		if !cursor.Signalled() {
			t.Errorf("%s: no signal", name)
		}
		for range 2 {
			if deltas, position, err := cursor.Poll(nil, 10, math.MaxInt); !errors.Is(err, ErrTooOld) {
				t.Errorf("%s: polled %v at %d, %v; want ErrTooOld", name, deltas, position, err)
			}
		}
	}
	wantDeltas(t, atEnd, 10)
	Apply(t, c, web(21).Set())
	wantDeltas(t, atEnd, 10, 21)
}

// The same case, but the reader polls only after the log has dropped the gap.
func TestCursorStartSwallowedByForgottenGap(t *testing.T) {
	c := New(*Pods, Limits{})
	c.Writer().Reset([]*object.Object{web(5).Object()}, 10)
	cursor := Watch(t, c, "b", 15)
	wantDeltas(t, cursor, 10)
	if err := c.Writer().Replace(nil, 20, Noon); err != nil {
		t.Fatal(err)
	}
	for rv := uint64(21); rv < 21+3*segmentLen; rv++ {
		Apply(t, c, web(rv).Set())
	}
	if len(c.view.Load().gaps) > 0 {
		t.Fatal("gap is still known: test does not test")
	}
	if deltas, position, err := cursor.Poll(nil, 10, math.MaxInt); err == nil {
		t.Errorf("polled %v at %d, want an error", deltas, position)
	}
}

// decisions are filter.Decisions. Other namespaces are not known.
type decisions map[string]bool

func (d decisions) Decide(namespace string) (selected, known bool) {
	selected, known = d[namespace]
	return selected, known
}

// A cursor stops before an event that it would show in a namespace without a decision, and goes on from
// there once there is one.
func TestCursorStopsAtUndecided(t *testing.T) {
	in := func(namespace string, rv uint64) Pod {
		p := web(rv)
		p.Namespace = namespace
		return p
	}
	for _, selected := range []bool{true, false} {
		c := New(*Pods, Roomy)
		c.Writer().Reset(nil, 1)
		d := decisions{"a": true}
		late := labels.SelectorFromSet(labels.Set{"is": "late"})
		all, err := c.Watch(Select(t, Pods, "", nil, nil).Among(d), 1)
		if err != nil {
			t.Fatal(err)
		}
		defer all.Close()
		some, err := c.Watch(Select(t, Pods, "", late, nil).Among(d), 1)
		if err != nil {
			t.Fatal(err)
		}
		defer some.Close()
		stops := func(c *Cursor, at string) {
			t.Helper()
			if c.Undecided() != at || c.More() != (at != "") {
				t.Fatalf("stopped at %q, more: %t", c.Undecided(), c.More())
			}
		}
		applyPods(t, c, nothing, in("b", 2))
		wantDeltas(t, all, 10)
		stops(all, "b")
		wantDeltas(t, some, 10)
		stops(some, "") // it shows nothing there yet
		later := in("b", 4)
		later.Labels = map[string]string{"is": "late"}
		applyPods(t, c, nothing, in("a", 3), later)
		wantDeltas(t, all, 10) // it waits
		stops(all, "b")
		wantDeltas(t, some, 10)
		stops(some, "b")
		d["b"] = selected
		want, wantSome := []uint64{3}, []uint64(nil)
		if selected {
			want, wantSome = []uint64{2, 3, 4}, []uint64{4}
		}
		wantDeltas(t, all, 10, want...)
		stops(all, "")
		wantDeltas(t, some, 10, wantSome...)
		stops(some, "")
	}
}

// While no event matches a narrow watch, its cursor stays at the log's end, even if the log drops
// events.
func TestCursorOutlivesLog(t *testing.T) {
	c := New(*Pods, Limits{})
	c.Writer().Reset(nil, 1)
	narrow, wide := Watch(t, c, "b", 1), Watch(t, c, "", 1)
	wantDeltas(t, narrow, 10)
	wantDeltas(t, wide, 10)
	rv := uint64(2)
	for ; rv < 4*segmentLen; rv++ {
		applyPods(t, c, nothing, web(rv))
	}
	if narrow.Signalled() {
		t.Error("woken by an event of another namespace")
	}
	match := web(rv)
	match.Namespace = "b"
	applyPods(t, c, nothing, match)
	if !narrow.Signalled() {
		t.Error("not woken by an event of its namespace")
	}
	wantDeltas(t, narrow, 10, rv)
	if _, _, err := wide.Poll(nil, 10, math.MaxInt); !errors.Is(err, ErrLagged) {
		t.Errorf("poll: %v, want ErrLagged", err)
	}
}

// A cursor that starts ahead of the log is woken once, when the log reaches its start. From then on it
// stays at the log's end like others.
func TestCursorAheadOutlivesLog(t *testing.T) {
	c := New(*Pods, Limits{})
	c.Writer().Reset(nil, 1)
	c.Writer().Carry(1, 5)
	far, near := Watch(t, c, "b", 9), Watch(t, c, "b", 5)
	closed, err := c.Watch(Select(t, Pods, "b", nil, nil), 4)
	if err != nil {
		t.Fatal(err)
	}
	closed.Close()
	wantDeltas(t, far, 10)
	wantDeltas(t, near, 10)
	woken := func(cursor *Cursor) bool {
		if !cursor.Signalled() {
			return false
		}
		wantDeltas(t, cursor, 10)
		return true
	}
	for rv := uint64(2); rv < 6*segmentLen; rv++ {
		if rv%2 == 0 || rv == 9 {
			c.Writer().Advance(rv, Noon)
		} else {
			applyPods(t, c, nothing, web(rv))
		}
		if woken(near) != (rv == 5) || woken(far) != (rv == 9) || closed.Signalled() {
			t.Errorf("wrong cursors are woken at %d", rv)
		}
	}
	if n := len(c.interests.mu.ahead); n > 0 {
		t.Errorf("%d cursors are still awaited", n)
	}
	match := web(6 * segmentLen)
	match.Namespace = "b"
	applyPods(t, c, nothing, match)
	wantDeltas(t, near, 10, 6*segmentLen)
	wantDeltas(t, far, 10, 6*segmentLen)
}

// A log that drops events below a cursor's start drops nothing that the cursor needs.
func TestCursorFarAheadOutlivesLog(t *testing.T) {
	const start = 5 * segmentLen
	for _, far := range []uint64{start, start + 3*segmentLen} { // how far the log goes before the cursor polls again
		c := New(*Pods, Limits{})
		c.Writer().Reset(nil, 1)
		c.Writer().Carry(1, start)
		cursor := Watch(t, c, "", start)
		wantDeltas(t, cursor, 10)
		for rv := uint64(2); rv <= far; rv++ {
			applyPods(t, c, nothing, web(rv))
		}
		want := far == start
		if err := cursor.Err(); (err == nil) != want {
			t.Errorf("before a poll at %d: %v", far, err)
		}
		_, _, err := cursor.Poll(nil, 10, math.MaxInt)
		if (err == nil) != want || err != nil && !errors.Is(err, ErrLagged) || !want && !errors.Is(cursor.Err(), ErrLagged) {
			t.Errorf("at %d: %v, %v", far, err, cursor.Err())
		}
		if want {
			applyPods(t, c, nothing, web(far+1))
			wantDeltas(t, cursor, 10, far+1)
		}
	}
}

// A batch can be longer than the log. A cursor that misses part of the batch must fail.
func TestCursorLosesToBatch(t *testing.T) {
	c := New(*Pods, Limits{})
	c.Writer().Reset(nil, 1)
	narrow, other := Watch(t, c, "b", 1), Watch(t, c, "c", 1)
	wantDeltas(t, narrow, 10)
	wantDeltas(t, other, 10)
	match := web(2)
	match.Namespace = "b"
	changes := []Change{match.Set()}
	for rv := uint64(3); rv < 4*segmentLen; rv++ {
		changes = append(changes, web(rv).Set())
	}
	Apply(t, c, changes...)
	if !narrow.Signalled() || other.Signalled() {
		t.Error("wrong cursors signalled")
	}
	if _, _, err := narrow.Poll(nil, 10, math.MaxInt); !errors.Is(err, ErrLagged) {
		t.Errorf("poll: %v, want ErrLagged", err)
	}
	wantDeltas(t, other, 10)
}

// Poll stops before an event that exceeds the limit, even before the first event, and resumes
// there.
func TestPoll(t *testing.T) {
	c := New(*Pods, Roomy)
	c.Writer().Reset(nil, 1)
	cursor := Watch(t, c, "a", 1)
	wantDeltas(t, cursor, 10)
	applyPods(t, c, nothing, web(2), web(3), web(4))
	each := len(web(2).Object().Item()) + EventOverhead
	for _, step := range []struct {
		bytes    int
		want     []uint64
		position uint64
		more     bool
	}{
		{each - 1, nil, 1, true},
		{2*each + each - 1, []uint64{2, 3}, 3, true},
		{each, []uint64{4}, 4, false},
		{each, nil, 4, false},
	} {
		deltas, position, err := cursor.Poll(nil, 10, step.bytes)
		if err != nil {
			t.Fatal(err)
		}
		var got []uint64
		for _, d := range deltas {
			got = append(got, d.RV)
		}
		if !slices.Equal(got, step.want) || position != step.position || cursor.More() != step.more {
			t.Errorf("within %d bytes: %v at %d, more %t; want %+v", step.bytes, got, position, cursor.More(), step)
		}
	}
}

// Poll looks at a limited number of events per call. So a filter that selects few objects
// does not delay a goroutine that polls many cursors.
func TestPollLooksAtFew(t *testing.T) {
	c := New(*Pods, Roomy)
	c.Writer().Reset(nil, 1)
	f := Select(t, Pods, "", labels.SelectorFromSet(labels.Set{"not": "there"}), nil)
	cursor, err := c.Watch(f, 1)
	if err != nil {
		t.Fatal(err)
	}
	defer cursor.Close()
	var changes []Change
	for rv := uint64(2); rv < 2+2*pollLooks; rv++ {
		changes = append(changes, web(rv).Set())
	}
	Apply(t, c, changes...)
	for turn, more := range []bool{true, false} {
		deltas, position, err := cursor.Poll(nil, 10, 1<<20)
		if want := uint64(1 + (turn+1)*pollLooks); err != nil || len(deltas) > 0 || position != want || cursor.More() != more {
			t.Errorf("%d deltas at %d, more %t, %v; want none at %d, more %t", len(deltas), position, cursor.More(), err, want, more)
		}
	}
}

// Whether a watch may show a long gap is found out by a poll for one event of any size, which no
// goroutine of many cursors makes. After that, each poll shows some of it.
func TestPollStopsBeforeALongGap(t *testing.T) {
	selector, err := labels.Parse("!not")
	if err != nil {
		t.Fatal(err)
	}
	for _, n := range []int{pollLooks, pollLooks + 1} {
		c := New(*Pods, Roomy)
		c.Writer().Reset(nil, 1)
		cursor, err := c.Watch(Select(t, Pods, "", selector, nil), 1)
		if err != nil {
			t.Fatal(err)
		}
		defer cursor.Close()
		var relist []*object.Object
		for i := range n {
			relist = append(relist, Pod{Namespace: "a", Name: fmt.Sprintf("%06d", i), UID: "u", RV: uint64(2 + i)}.Object()) //nolint:gosec // small
		}
		if err := c.Writer().Replace(relist, uint64(2+n), Noon); err != nil { //nolint:gosec // small
			t.Fatal(err)
		}
		for _, poll := range []struct{ limit, bytes, want int }{{10, 1 << 20, 10}, {1, math.MaxInt, 1}, {10, 1 << 20, 10}} {
			if n > pollLooks && poll.bytes < math.MaxInt && cursor.passed == 1 {
				poll.want = 0
			}
			deltas, position, err := cursor.Poll(nil, poll.limit, poll.bytes)
			if err != nil || len(deltas) != poll.want || position != 1 || !cursor.More() {
				t.Errorf("a gap of %d: %d deltas at %d, more %t, %v; want %d at 1, more", n, len(deltas), position, cursor.More(), err, poll.want)
			}
		}
	}
}

// Err reports without a poll that the log has left a cursor behind.
func TestCursorErr(t *testing.T) {
	c := New(*Pods, Limits{})
	c.Writer().Reset(nil, 1)
	cursor := Watch(t, c, "a", 1)
	if err := cursor.Err(); err != nil {
		t.Errorf("a new cursor: %v", err)
	}
	for rv := uint64(2); rv < 4*segmentLen; rv++ {
		applyPods(t, c, nothing, web(rv))
	}
	if err := cursor.Err(); !errors.Is(err, ErrLagged) {
		t.Errorf("left behind: %v", err)
	}
	c.Writer().End()
	if err := cursor.Err(); !errors.Is(err, ErrEnded) {
		t.Errorf("of a cache that has ended: %v", err)
	}
}
