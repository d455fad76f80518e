package watchcache_test

import (
	"errors"
	"testing"

	"github.com/watchproxy/watchproxy/watchcache"
)

// other returns another pod with the same name.
func other(name string, rv uint64) watchcache.Pod {
	p := pod(name, rv)
	p.UID += "'"
	return p
}

type pods = []watchcache.Pod

func TestReplace(t *testing.T) {
	for name, test := range map[string]struct {
		cached, listed pods // at 10 and at rv
		rv             uint64
		want           string // events
	}{
		"nothing happened":       {pods{pod("a", 1)}, pods{pod("a", 1)}, 10, ""},
		"nothing of ours":        {pods{pod("a", 1)}, pods{pod("a", 1)}, 20, ""},
		"from nothing":           {nil, pods{pod("b", 12), pod("a", 15)}, 20, "ADDED b@12 12, ADDED a@15 15"},
		"to nothing":             {pods{pod("a", 1), pod("b", 2)}, nil, 20, "DELETED a@10 10, DELETED b@10 10"},
		"changed":                {pods{pod("a", 1), pod("b", 2)}, pods{pod("a", 1), pod("b", 20)}, 20, "MODIFIED b@20 20"},
		"first and last":         {pods{pod("b", 1)}, pods{pod("a", 11), pod("b", 1), pod("c", 12)}, 12, "ADDED a@11 11, ADDED c@12 12"},
		"replaced":               {pods{pod("a", 1)}, pods{other("a", 15)}, 20, "DELETED a@10 10, ADDED a@15 15"},
		"replaced at once":       {pods{pod("a", 1)}, pods{other("a", 12)}, 12, "DELETED a@10 10, ADDED a@12 12"},
		"used revisions":         {pods{pod("a", 1), pod("b", 2), pod("c", 3)}, pods{pod("a", 11), pod("d", 12), pod("e", 14)}, 15, "DELETED b@10 10, DELETED c@10 10, MODIFIED a@11 11, ADDED d@12 12, ADDED e@14 14"},
		"later key more urgent":  {pods{pod("a", 1), pod("b", 2)}, pods{other("b", 12)}, 13, "DELETED b@10 10, DELETED a@10 10, ADDED b@12 12"},
		"urgent in order":        {pods{pod("a", 1), pod("b", 2), pod("c", 3)}, pods{other("a", 16), other("b", 14), other("c", 13)}, 16, "DELETED c@10 10, DELETED b@10 10, DELETED a@10 10, ADDED c@13 13, ADDED b@14 14, ADDED a@16 16"},
		"one deletion, one step": {pods{pod("a", 1)}, nil, 11, "DELETED a@11 11"},
	} {
		t.Run(name, func(t *testing.T) {
			c := filled(10, test.cached...)
			cursor := watchcache.Watch(t, c, "", 10)
			wantPoll(t, cursor, 10, "", 10)
			if err := c.Writer().Replace(objects(test.listed...), test.rv, watchcache.Noon); err != nil {
				t.Fatal(err)
			}
			wantPoll(t, cursor, 100, test.want, test.rv)
			wantPoll(t, watchcache.Watch(t, c, "", 10), 100, test.want, test.rv)
			s, err := c.Snapshot()
			if want := names(fresh(t, test.listed)); err != nil || names(s) != want || s.ResourceVersion() != test.rv {
				t.Errorf("state is [%s] at %d, want [%s]", names(s), s.ResourceVersion(), want)
			}
			checkGap(t, c, 10, test.rv, test.rv)
		})
	}
}

// checkGap checks that watches and reads strictly between after and before are refused, and that
// all other resourceVersions up to rv are served.
func checkGap(t *testing.T, c *watchcache.Cache, after, before, rv uint64) {
	t.Helper()
	for n := after; n <= rv; n++ {
		inside := after < n && n < before
		if _, err := c.SnapshotAt(n); errors.Is(err, watchcache.ErrTooOld) != inside {
			t.Errorf("SnapshotAt(%d) in gap (%d, %d): %v", n, after, before, err)
		}
		cursor, err := c.Watch(everything(t), n)
		if errors.Is(err, watchcache.ErrTooOld) != inside {
			t.Errorf("Watch(%d) in gap (%d, %d): %v", n, after, before, err)
		}
		if err == nil {
			cursor.Close()
		}
	}
}

func TestReplaceDiverged(t *testing.T) {
	for name, test := range map[string]struct {
		cached, listed pods
		rv             uint64
	}{
		"list went back":        {nil, nil, 9},
		"object went back":      {pods{pod("a", 5)}, pods{pod("a", 4)}, 20},
		"object missed":         {nil, pods{pod("a", 10)}, 20},
		"object from beyond":    {nil, pods{pod("a", 21)}, 20},
		"change without time":   {pods{pod("a", 5)}, pods{pod("a", 10)}, 10},
		"deleted without time":  {pods{pod("a", 5)}, nil, 10},
		"too many deletions":    {pods{pod("a", 5), pod("b", 6), pod("c", 7)}, pods{pod("d", 11)}, 13},
		"replaced without time": {pods{pod("a", 5)}, pods{other("a", 11)}, 20},
		"deadline is taken":     {pods{pod("a", 5), pod("b", 6)}, pods{other("a", 13), pod("b", 11), pod("c", 12)}, 20},
		"one revision twice":    {nil, pods{pod("a", 15), pod("b", 15)}, 20},
	} {
		t.Run(name, func(t *testing.T) {
			c := filled(10, test.cached...)
			cursor := watchcache.Watch(t, c, "", 10)
			stats, before := c.Stats(), names(fresh(t, test.cached))
			if err := c.Writer().Replace(objects(test.listed...), test.rv, watchcache.Noon); !errors.Is(err, watchcache.ErrDiverged) {
				t.Fatalf("Replace: %v, want ErrDiverged", err)
			}
			s, _ := c.Snapshot()
			if names(s) != before || c.Stats() != stats {
				t.Errorf("failed Replace changed the state to [%s], %+v", names(s), c.Stats())
			}
			wantPoll(t, cursor, 10, "", 10)
			c.Writer().Advance(20, watchcache.Noon)
			checkGap(t, c, 20, 20, 20)
		})
	}
}

// If leases expire, any number of deletions may share a revision. A relist then continues the
// watches.
func TestReplaceLeases(t *testing.T) {
	events := *watchcache.Pods
	events.NoWatchCache = true
	for name, test := range map[string]struct {
		listed pods
		rv     uint64
		want   string // empty if Replace fails
	}{
		"one revision":     {nil, 11, "DELETED a@11 11, DELETED b@11 11, DELETED c@11 11"},
		"beside a set":     {pods{pod("d", 11)}, 12, "DELETED a@10 10, DELETED b@10 10, DELETED c@10 10, ADDED d@11 11"},
		"no free revision": {pods{pod("d", 11)}, 11, ""},
		"no revision":      {nil, 10, ""},
	} {
		t.Run(name, func(t *testing.T) {
			c := watchcache.New(events, watchcache.Roomy)
			c.Writer().Reset(objects(pod("a", 5), pod("b", 6), pod("c", 7)), 10)
			cursor := watchcache.Watch(t, c, "", 10)
			err := c.Writer().Replace(objects(test.listed...), test.rv, watchcache.Noon)
			if errors.Is(err, watchcache.ErrDiverged) != (test.want == "") {
				t.Fatalf("Replace: %v", err)
			}
			if err != nil {
				test.rv = 10
			}
			wantPoll(t, cursor, 10, test.want, test.rv)
		})
	}
}

// fresh returns the state of a newly filled cache.
func fresh(t *testing.T, all pods) watchcache.Snapshot {
	t.Helper()
	s, err := filled(1, all...).Snapshot()
	if err != nil {
		t.Fatal(err)
	}
	return s
}
