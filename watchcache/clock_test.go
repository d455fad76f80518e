package watchcache_test

import (
	"bufio"
	"bytes"
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
	var dump bytes.Buffer
	if err := before.Dump(&dump); err != nil {
		t.Fatal(err)
	}
	c := watchcache.New(*watchcache.Pods, limits)
	_, publish, err := c.Restore(bufio.NewReader(&dump))
	if err != nil {
		t.Fatal(err)
	}
	publish()
	if n := c.Stats().LogEvents; n != events {
		t.Fatalf("%d events were restored", n)
	}
	c.Trim(time.Now().Add(2 * time.Minute))
	if n := c.Stats().LogEvents; n > events/2 {
		t.Errorf("%d events are still there two minutes later", n)
	}
}

// After a restore of upstream to an earlier state, clients that saw later states cannot resume.
// Their resourceVersions then belong to other changes.
func TestWatchFromAnAbandonedEpoch(t *testing.T) {
	c := filled(10, pod("x", 5))
	apply(t, c, pod("x", 30).Set())
	c.Reset([]*object.Object{pod("x", 5).Object()}, 20)
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
	apply(t, c, pod("x", 40).Set())
	cursor, err := c.Watch(everything(t), 35)
	if err != nil {
		t.Fatal(err)
	}
	cursor.Close()
}
