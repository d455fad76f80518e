package upstream

import (
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/watchproxy/watchproxy/watchcache/object"
)

// If there is no memory for new caches, existing caches continue, and requests for other resources
// go to upstream.
func TestNoNewFeeds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		fill(f, 3)
		feeds := start(t, f)
		feed := openFrom(t, feeds)
		feeds.SetMemoryPressure(MemoryPressure{Logs: 1, NoNewFeeds: true})
		if _, err := feeds.Open(t.Context(), configmaps, object.Want{}, object.Protobuf, 0); !errors.Is(err, ErrNoMemory) {
			t.Errorf("another feed: %v", err)
		}
		f.set("new", "1")
		same(t, f, readFresh(t, f, feed))
		feeds.SetMemoryPressure(MemoryPressure{Logs: 1})
		if _, err := feeds.Open(t.Context(), configmaps, object.Want{}, object.Protobuf, 0); errors.Is(err, ErrNoMemory) {
			t.Errorf("there is memory again: %v", err)
		}
	})
}

// If a feed's first state is too large, the feed is given up. The next attempt comes only after a
// pause.
func TestFeedThatDoesNotFitIsGivenUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		fill(f, 3)
		f.stall(true) // its state never ends
		feeds := start(t, f)
		opened := make(chan error)
		go func() {
			_, err := feeds.Open(t.Context(), configmaps, object.Want{}, object.JSON, 0)
			opened <- err
		}()
		time.Sleep(time.Second)
		feeds.SetMemoryPressure(MemoryPressure{Logs: 1, NoNewFeeds: true})
		if err := <-opened; err == nil {
			t.Error("its cache was handed out")
		}
		feeds.SetMemoryPressure(MemoryPressure{Logs: 1})
		f.stall(false)
		if _, err := feeds.Open(t.Context(), configmaps, object.Want{}, object.JSON, 0); !errors.Is(err, ErrNoMemory) {
			t.Errorf("opened again at once: %v", err)
		}
		time.Sleep(noMemoryPause)
		if _, err := feeds.Open(t.Context(), configmaps, object.Want{}, object.JSON, 0); err != nil {
			t.Errorf("after a while: %v", err)
		}
	})
}

// Under memory pressure, the logs of all feeds shrink immediately. The log of a feed that starts
// later is short, too.
func TestLogsAreShed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		fill(f, 3)
		feeds := start(t, f)
		feed := openFrom(t, feeds)
		for i := range 2000 {
			f.set("o001", fmt.Sprint(i))
		}
		synctest.Wait()
		before := feed.Cache().Stats()
		feeds.SetMemoryPressure(MemoryPressure{Logs: 100 / float64(feeds.Options.Load().Limits.Events)})
		after := feed.Cache().Stats()
		if before.LogEvents < 2000 || after.LogEvents > 300 || after.Since <= before.Since || after.ResourceVersion != before.ResourceVersion {
			t.Errorf("from %+v to %+v", before, after)
		}
		same(t, f, readFresh(t, f, feed))
	})
}

// If the memory pressure changes while a feed starts, the change applies to that feed, too.
func TestStartingFeedIsShed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		fill(f, 3)
		feeds := start(t, f)
		f.locked(func() { f.mu.down = errDown })
		go func() { _, _ = feeds.Open(t.Context(), configmaps, object.Want{}, object.JSON, 0) }()
		options := *feeds.Options.Load()
		options.Limits.Events = 1000
		feeds.SetOptions(options)
		feeds.SetMemoryPressure(MemoryPressure{Logs: 0.5})
		f.locked(func() { f.mu.down = nil })
		time.Sleep(time.Minute)
		feed := openFrom(t, feeds)
		if got := feed.Cache().Limits().Events; got != 500 {
			t.Errorf("its log holds up to %d events, want 500", got)
		}
	})
}
