package watchcache_test

import (
	"errors"
	"fmt"
	"math"
	"testing"

	"github.com/watchproxy/watchproxy/watchcache"
	"github.com/watchproxy/watchproxy/watchcache/object"
)

// jumped returns a cache whose relist left a gap from 10 to 20.
func jumped(t *testing.T, cached, listed pods) *watchcache.Cache {
	t.Helper()
	c := filled(10, cached...)
	if err := c.Writer().Replace(objects(listed...), 20, watchcache.Noon); err != nil {
		t.Fatal(err)
	}
	return c
}

// labelled returns a pod with the label app. The tests select app=web.
func labelled(name string, rv uint64, app string) watchcache.Pod {
	p := pod(name, rv)
	p.Labels = map[string]string{"app": app}
	return p
}

func selecting(t *testing.T, c *watchcache.Cache, labels, fields string, from uint64) *watchcache.Cursor {
	t.Helper()
	cursor, err := c.Watch(newSelection(t, "", labels, fields).filter, from)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(cursor.Close)
	return cursor
}

// After a gap, an object that left a selection is removed together with the deletions. It is not
// removed again at its own revision.
func TestGapSelections(t *testing.T) {
	c := jumped(t,
		pods{labelled("gone", 1, "web"), labelled("leaves", 2, "web"), labelled("enters", 3, "db"), labelled("stays", 4, "web"), labelled("out", 5, "db")},
		pods{labelled("leaves", 15, "db"), labelled("enters", 14, "web"), labelled("stays", 12, "web"), labelled("out", 13, "dc"), labelled("new", 16, "web")})
	const web = "DELETED gone@10 10, DELETED leaves@2 10, MODIFIED stays@12 12, ADDED enters@14 14, ADDED new@16 16"
	const db = "DELETED out@5 10, DELETED enters@3 10, ADDED leaves@15 15"
	const all = "DELETED gone@10 10, MODIFIED stays@12 12, MODIFIED out@13 13, MODIFIED enters@14 14, MODIFIED leaves@15 15, ADDED new@16 16"
	wantPoll(t, selecting(t, c, "app=web", "", 10), 100, web, 20)
	wantPoll(t, selecting(t, c, "app=db", "", 10), 100, db, 20)
	wantPoll(t, selecting(t, c, "", "", 10), 100, all, 20)
	cursor := selecting(t, c, "app=web", "", 10)
	wantPoll(t, cursor, 1, "DELETED gone@10 10", 10)
	wantPoll(t, cursor, 2, "DELETED leaves@2 10, MODIFIED stays@12 12", 10)
	wantPoll(t, cursor, 100, "ADDED enters@14 14, ADDED new@16 16", 20)
	checkGap(t, c, 10, 20, 21)
}

// An object that is selected before and after a gap may have been outside the selection in between.
// If the client could resume inside the gap, it has to list.
func TestGapNotTold(t *testing.T) {
	onNode := func(p watchcache.Pod) watchcache.Pod {
		p.Node = "n1"
		return p
	}
	a, b := onNode(labelled("a", 1, "web")), onNode(labelled("b", 2, "web"))
	one := jumped(t, pods{a}, pods{onNode(labelled("a", 15, "web")), onNode(labelled("c", 16, "web"))})
	two := jumped(t, pods{a, b}, pods{onNode(labelled("a", 15, "web")), onNode(labelled("b", 16, "web"))})
	behind := jumped(t, pods{b}, pods{onNode(labelled("b", 16, "web")), onNode(labelled("c", 15, "web"))})
	both := "MODIFIED a@15 15, MODIFIED b@16 16"
	for name, test := range map[string]struct {
		cache          *watchcache.Cache
		labels, fields string
		want           string // empty if the watch is refused
	}{
		"everything":          {two, "", "", both},
		"by name":             {two, "", "metadata.name!=c", both},
		"the first may":       {one, "app=web", "", "MODIFIED a@15 15, ADDED c@16 16"},
		"by label":            {two, "app=web", "", ""},
		"by field":            {two, "", "status.phase!=Running", ""},
		"by a changing field": {two, "", "spec.nodeName=n1", ""},
		"behind a new one":    {behind, "app=web", "", ""},
		"selects none":        {two, "app=db", "", ""},
	} {
		t.Run(name, func(t *testing.T) {
			cursor := selecting(t, test.cache, test.labels, test.fields, 10)
			if test.want != "" || name == "selects none" {
				wantPoll(t, cursor, 100, test.want, 20)
				return
			}
			for range 2 {
				deltas, _, err := cursor.Poll(nil, 1, math.MaxInt)
				if tooOld, ok := errors.AsType[*watchcache.TooOldError](err); !ok || !tooOld.Gap || len(deltas) > 0 {
					t.Errorf("polled [%s], %v; want that it is too old", show(deltas), err)
				}
			}
		})
	}
}

// A pod never leaves its node, so watches that select by node survive a gap.
func TestGapFinalField(t *testing.T) {
	resource := *watchcache.Pods
	resource.Fields = append([]object.Field{}, resource.Fields...)
	resource.Fields[0].Final = true
	c := watchcache.New(resource, watchcache.Roomy)
	var before, after []*object.Object
	for i := range uint64(3) {
		p := watchcache.Pod{Namespace: "a", Name: fmt.Sprint(i), UID: fmt.Sprint(i), RV: i + 1, Node: "n1"}
		before = append(before, p.Object())
		p.RV += 10
		after = append(after, p.Object())
	}
	c.Writer().Reset(before, 10)
	for fields, passes := range map[string]bool{"spec.nodeName=n1": true, "spec.nodeName!=n2": false} {
		filter := watchcache.Select(t, &resource, "", nil, newSelection(t, "", "", fields).fields)
		cursor, err := c.Watch(filter, 10)
		if err != nil {
			t.Fatal(err)
		}
		defer func() {
			defer cursor.Close()
			if deltas, _, err := cursor.Poll(nil, 10, math.MaxInt); passes != (err == nil) || passes && len(deltas) != 3 {
				t.Errorf("%s: polled [%s], %v", fields, show(deltas), err)
			}
		}()
	}
	if err := c.Writer().Replace(after, 20, watchcache.Noon); err != nil {
		t.Fatal(err)
	}
}

// After the log has dropped some of a gap's removals, it refuses every reader that needs them.
func TestGapTrimmed(t *testing.T) {
	var cached pods
	for i := range 300 {
		cached = append(cached, labelled(fmt.Sprintf("p%03d", i), 1, "web"))
	}
	c := watchcache.New(*watchcache.Pods, watchcache.Limits{})
	c.Writer().Reset(objects(cached...), 10)
	cursor := watchcache.Watch(t, c, "", 10)
	if err := c.Writer().Replace(objects(labelled("new", 800, "web")), 1000, watchcache.Noon); err != nil {
		t.Fatal(err)
	}
	if s := c.Stats(); s.LogEvents >= 300 {
		t.Fatalf("%d events are left: test does not test", s.LogEvents)
	}
	for _, rv := range []uint64{10, 11, 500, 800, 999} {
		if _, err := c.Watch(everything(t), rv); !errors.Is(err, watchcache.ErrTooOld) {
			t.Errorf("Watch(%d): %v", rv, err)
		}
		if _, err := c.SnapshotAt(rv); !errors.Is(err, watchcache.ErrTooOld) {
			t.Errorf("SnapshotAt(%d): %v", rv, err)
		}
	}
	wantPoll(t, watchcache.Watch(t, c, "", 1000), 10, "", 1000)
	if deltas, _, err := cursor.Poll(nil, 10, math.MaxInt); !errors.Is(err, watchcache.ErrLagged) {
		t.Errorf("polled [%s], %v", show(deltas), err)
	}
}

// A reader that forwards the history to its own clients gets an error at a gap, even if no event
// concerns it.
func TestGapWholeHistory(t *testing.T) {
	c := filled(10, pod("a", 1))
	before, inside, at := watchcache.Watch(t, c, "", 10), watchcache.Watch(t, c, "", 15), watchcache.Watch(t, c, "", 20)
	for _, cursor := range []*watchcache.Cursor{before, inside, at} {
		cursor.WholeHistory()
		wantPoll(t, cursor, 10, "", 10)
	}
	if err := c.Writer().Replace(objects(pod("a", 1)), 20, watchcache.Noon); err != nil {
		t.Fatal(err)
	}
	watchcache.WantSignal(t, before)
	after := watchcache.Watch(t, c, "", 10)
	after.WholeHistory()
	for _, cursor := range []*watchcache.Cursor{before, inside, after} {
		if deltas, _, err := cursor.Poll(nil, 10, math.MaxInt); !errors.Is(err, watchcache.ErrTooOld) {
			t.Errorf("polled [%s], %v; want that it is too old", show(deltas), err)
		}
	}
	watchcache.Apply(t, c, pod("a", 21).Set())
	wantPoll(t, at, 10, "MODIFIED a@21 21", 21)
	wantPoll(t, watchcache.Watch(t, c, "", 10), 10, "MODIFIED a@21 21", 21)
}
