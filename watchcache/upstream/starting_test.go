package upstream

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/watchproxy/watchproxy/watchcache/upstream/servers"
)

// A starting upstream that refuses all requests does not end any cache, even after a long outage.
func TestStartAfterALongOutage(t *testing.T) {
	for _, outage := range []time.Duration{20 * time.Second, time.Minute} {
		t.Run(outage.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFrail()
				_, all := startMany(t, f)
				time.Sleep(time.Minute)
				f.leave()
				time.Sleep(outage)
				f.turn(starting)
				time.Sleep(15 * time.Second)
				f.turn(up)
				time.Sleep(10 * time.Second)
				for _, feed := range all {
					if _, lost := feed.Lost(); lost || !feed.Cache().Stats().Ready {
						t.Errorf("%s has ended, or follows nobody", feed)
					}
				}
			})
		})
	}
}

// An upstream whose responses take longer than a check's timeout is still followed.
func TestSlowUpstreamIsFollowed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFrail()
		_, all := startMany(t, f)
		time.Sleep(time.Minute)
		f.locked(func() { f.fakeUpstream.mu.takes = servers.CheckTimeout + time.Second/2 })
		f.cutStreams(false)
		time.Sleep(10 * time.Minute)
		for _, feed := range all {
			if _, lost := feed.Lost(); lost {
				t.Errorf("%s has no stream", feed)
			}
		}
	})
}

// If a state is read in pages, the end of the read does not mean that upstream is down. Upstream's
// return takes as few checks as with streaming.
func TestPagesRaiseNoDoubt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFrail()
		f.fakeUpstream.mu.noStream = 422
		_, all := startMany(t, f)
		time.Sleep(time.Minute)
		f.leave()
		time.Sleep(8 * time.Second)
		back := time.Now()
		f.turn(up)
		wantFresh(t, f, all)
		checks := 0
		for _, r := range f.since(back) {
			if r.path == "/readyz" {
				checks++
			}
		}
		if checks > 3 {
			t.Errorf("/readyz was asked %d times", checks)
		}
	})
}
