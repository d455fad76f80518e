package watchcache_test

import (
	"errors"
	"math"
	"testing"

	"github.com/watchproxy/watchproxy/watchcache"
	"github.com/watchproxy/watchproxy/watchcache/object"
)

// A state that upstream has had for a while is its state at each resourceVersion of that time. So
// the pages of a list continue while the collection rests and others change.
func TestSnapshotAtCarried(t *testing.T) {
	c := filled(10, pod("x", 5))
	if !c.Writer().Carry(10, 12) || !c.Writer().Carry(12, 15) {
		t.Fatal("not carried")
	}
	at := func(rv uint64, want string) {
		t.Helper()
		if s, err := c.SnapshotAt(rv); err != nil || names(s) != want || s.ResourceVersion() != rv {
			t.Errorf("at %d: [%s] at %d, %v", rv, names(s), s.ResourceVersion(), err)
		}
	}
	for rv := uint64(10); rv <= 15; rv++ {
		at(rv, "x@5")
	}
	if _, err := c.SnapshotAt(16); !errors.Is(err, watchcache.ErrTooNew) {
		t.Errorf("SnapshotAt(16): %v", err)
	}
	if err := c.Writer().FastForward([]*object.Object{pod("x", 5).Object(), pod("y", 20).Object()}, 20); err != nil {
		t.Fatal(err)
	}
	if _, err := c.SnapshotAt(18); !errors.Is(err, watchcache.ErrTooNew) {
		t.Errorf("SnapshotAt(18): %v", err)
	}
	c.Writer().Carry(20, 22)
	for rv := uint64(20); rv <= 22; rv++ {
		at(rv, "x@5 y@20")
	}
	at(14, "x@5")
	for rv := uint64(30); rv < 200; rv += 2 {
		if err := c.Writer().FastForward([]*object.Object{pod("x", 5).Object()}, rv); err != nil {
			t.Fatal(err)
		}
	}
	at(100, "x@5")
	at(198, "x@5")
	for _, rv := range []uint64{22, 99} {
		if _, err := c.SnapshotAt(rv); !errors.Is(err, watchcache.ErrTooNew) {
			t.Errorf("SnapshotAt(%d): %v", rv, err)
		}
	}
	watchcache.Apply(t, c, pod("y", 20).Set(), pod("y", 25).Delete())
	at(24, "x@5 y@20")
	at(100, "x@5")
	c.Writer().Advance(300, watchcache.Noon)
	at(99, "x@5")
}

// One resourceVersion has one state. If a relist shows another one than readers have seen, a watch
// from that state would miss the difference.
func TestRelistAtACarriedState(t *testing.T) {
	for _, c := range []struct {
		name string
		rv   uint64
		is   []*object.Object
		want error
	}{
		{"gone", 15, objects(pod("x", 5)), watchcache.ErrDiverged},
		{"gone, earlier", 12, objects(pod("x", 5)), watchcache.ErrDiverged},
		{"changed", 15, objects(pod("x", 5), pod("y", 13)), watchcache.ErrDiverged},
		{"the same", 15, objects(pod("x", 5), pod("y", 6)), nil},
		{"the same, earlier", 12, objects(pod("x", 5), pod("y", 6)), nil},
		{"gone, later", 20, objects(pod("x", 5)), nil},
	} {
		cache := filled(10, pod("x", 5), pod("y", 6))
		cache.Writer().Carry(10, 15)
		cursor := watchcache.Watch(t, cache, "", 15)
		cache.Writer().Distrust()
		if err := cache.Writer().Replace(c.is, c.rv, watchcache.Noon); !errors.Is(err, c.want) {
			t.Errorf("%s: %v", c.name, err)
		}
		if c.want != nil {
			continue
		}
		if _, _, err := cursor.Poll(nil, 1, math.MaxInt); errors.Is(err, watchcache.ErrTooOld) != (c.rv > 15) {
			t.Errorf("%s: a watch from the carried state: %v", c.name, err)
		}
		s, err := cache.Snapshot()
		if err != nil || s.Len() != len(c.is) || s.ResourceVersion() != max(15, c.rv) {
			t.Errorf("%s: then [%s] at %d, %v", c.name, names(s), s.ResourceVersion(), err)
		}
	}
}

// A watch of a proxy in front has seen all events up to a carried resourceVersion, and says so in
// bookmarks. This never goes back, although the log's own resourceVersion is lower. Other watches
// stay at the log, where a relist may begin a gap.
func TestPollReachesCarried(t *testing.T) {
	c := filled(10, pod("x", 5))
	front, other := watchcache.Watch(t, c, "", 10), watchcache.Watch(t, c, "", 10)
	front.WholeHistory()
	at := func(carried, log uint64, events int) {
		t.Helper()
		for cursor, want := range map[*watchcache.Cursor]uint64{front: carried, other: log} {
			deltas, position, err := cursor.Poll(nil, 10, math.MaxInt)
			if err != nil || position != want || len(deltas) != events {
				t.Errorf("%d events until %d, %v; want %d until %d", len(deltas), position, err, events, want)
			}
		}
	}
	at(10, 10, 0)
	c.Writer().Carry(10, 15)
	at(15, 10, 0)
	listed := []*object.Object{pod("x", 5).Object(), pod("y", 20).Object()}
	if err := c.Writer().FastForward(listed, 20); err != nil {
		t.Fatal(err)
	}
	at(15, 10, 0) // the event of y has not come yet
	c.Writer().Carry(20, 22)
	at(15, 10, 0)
	c.Writer().Advance(12, watchcache.Noon)
	at(15, 12, 0)
	watchcache.Apply(t, c, pod("y", 20).Set())
	at(22, 20, 1)
	c.Writer().Advance(30, watchcache.Noon)
	at(30, 30, 0)
	c.Writer().Carry(30, 33)
	at(33, 30, 0)
	watchcache.Apply(t, c, pod("y", 34).Set())
	at(34, 34, 1)
}
