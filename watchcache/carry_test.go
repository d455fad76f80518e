package watchcache_test

import (
	"errors"
	"testing"

	"github.com/watchproxy/watchproxy/watchcache"
	"github.com/watchproxy/watchproxy/watchcache/object"
)

// A state that upstream has had for a while is its state at each resourceVersion of that time. So
// the pages of a list continue while the collection rests and others change.
func TestSnapshotAtCarried(t *testing.T) {
	c := filled(10, pod("x", 5))
	if !c.Carry(10, 12) || !c.Carry(12, 15) {
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
	if err := c.FastForward([]*object.Object{pod("x", 5).Object(), pod("y", 20).Object()}, 20); err != nil {
		t.Fatal(err)
	}
	if _, err := c.SnapshotAt(18); !errors.Is(err, watchcache.ErrTooNew) {
		t.Errorf("SnapshotAt(18): %v", err)
	}
	c.Carry(20, 22)
	for rv := uint64(20); rv <= 22; rv++ {
		at(rv, "x@5 y@20")
	}
	at(14, "x@5")
	for rv := uint64(30); rv < 200; rv += 2 {
		if err := c.FastForward([]*object.Object{pod("x", 5).Object()}, rv); err != nil {
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
	c.Advance(300, watchcache.Noon)
	at(99, "x@5")
}
