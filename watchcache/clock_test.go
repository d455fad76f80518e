package watchcache_test

import (
	"errors"
	"testing"
	"time"

	"github.com/watchproxy/watchproxy/watchcache"
	"github.com/watchproxy/watchproxy/watchcache/object"
)

// A process with a fast clock can save events whose times are in the future. After a restore, their
// age counts from the time of the restore.
func TestRestoreFromTheFuture(t *testing.T) {
	limits := watchcache.Limits{Age: time.Minute, Events: 1 << 20, Bytes: 1 << 30}
	before := watchcache.New(*watchcache.Pods, limits)
	before.Reset(nil, 1)
	future := time.Now().Add(time.Hour)
	const events = 1000 // the log is trimmed by segments
	for rv := uint64(2); rv < 2+events; rv++ {
		if err := before.Apply([]watchcache.Change{pod("x", rv).Set()}, future); err != nil {
			t.Fatal(err)
		}
	}
	c := restored(t, dump(t, before), limits)
	if n := c.Stats().LogEvents; n != events {
		t.Fatalf("%d events were restored", n)
	}
	c.Trim(time.Now().Add(2 * time.Minute))
	if n := c.Stats().LogEvents; n > events/2 {
		t.Errorf("%d events are still there two minutes later", n)
	}
}

// After a restore of upstream to an earlier state, watches end at once, and clients that saw later
// states cannot resume. Their resourceVersions then belong to other changes.
func TestWatchFromAnAbandonedEpoch(t *testing.T) {
	c := filled(10, pod("x", 5))
	watchcache.Apply(t, c, pod("x", 30).Set())
	waiting := watchcache.Watch(t, c, "", 30)
	wantPoll(t, waiting, 10, "", 30)
	c.Reset([]*object.Object{pod("x", 5).Object()}, 20)
	watchcache.WantSignal(t, waiting)
	for from, gone := range map[uint64]bool{10: true, 19: true, 20: false, 21: true, 30: true, 31: false} {
		cursor, err := c.Watch(everything(t), from)
		tooOld, _ := errors.AsType[*watchcache.TooOldError](err)
		if (err != nil) != gone || gone && (tooOld == nil || !tooOld.Gap) {
			t.Errorf("from %d: %v", from, err)
		}
		if err == nil {
			cursor.Close()
		}
	}
	watchcache.Apply(t, c, pod("x", 40).Set())
	watchcache.Watch(t, c, "", 35)
}
