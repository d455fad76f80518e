package watchcache_test

import (
	"errors"
	"testing"

	"github.com/watchproxy/watchproxy/watchcache"
	"github.com/watchproxy/watchproxy/watchcache/object"
)

// After a restore of upstream to an earlier state, watches end at once, and clients that saw later
// states cannot resume. Their resourceVersions then belong to other changes.
func TestWatchFromAnAbandonedEpoch(t *testing.T) {
	c := filled(10, pod("x", 5))
	watchcache.Apply(t, c, pod("x", 30).Set())
	waiting := watchcache.Watch(t, c, "", 30)
	wantPoll(t, waiting, 10, "", 30)
	c.Writer().Reset([]*object.Object{pod("x", 5).Object()}, 20)
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
