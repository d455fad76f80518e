package upstream

import (
	"errors"
	"fmt"
	"net/http"
	"path"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/watchproxy/watchproxy/watchcache"
	"github.com/watchproxy/watchproxy/watchcache/object"
	"github.com/watchproxy/watchproxy/watchcache/upstream/fresh"
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

// unequal is an upstream whose resources have objects of their own.
type unequal struct {
	*frail
	resources map[string]*fakeUpstream
}

// RoundTrip implements http.RoundTripper.
func (u *unequal) RoundTrip(req *http.Request) (*http.Response, error) {
	if f := u.resources[path.Base(req.URL.Path)]; f != nil {
		return f.RoundTrip(req)
	}
	return u.frail.RoundTrip(req)
}

// A user who makes the proxy fill more caches when memory is short does not end the old one, which all
// others use. If the new ones are too small together, they do not end in its place.
func TestYoungFeedIsGivenUpFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		u := &unequal{frail: newFrail(), resources: map[string]*fakeUpstream{
			resourceName(0): newFake(), resourceName(1): newFake(), resourceName(2): newFake(),
		}}
		feeds := start(t, u)
		open := func(i, size int) *fresh.Feed {
			gvr := schema.GroupVersionResource{Version: "v1", Resource: resourceName(i)}
			u.resources[gvr.Resource].set("a", strings.Repeat("x", size))
			f := openOf(t, feeds, gvr)
			synctest.Wait()
			return f
		}
		const unit = 64 << 10
		old := open(0, 32*unit)
		time.Sleep(noMemoryPause)
		for _, f := range []*fresh.Feed{open(1, unit+unit/3), old, open(2, unit+unit/4)} {
			feeds.GiveUpLargest()
			synctest.Wait()
			if _, err := feeds.Open(t.Context(), f.GVR, object.Want{}, object.JSON, 0); !errors.Is(err, ErrNoMemory) {
				t.Errorf("%s is not given up in its turn: %v", f, err)
			}
		}
	})
}

// The cache with the most bytes of objects and log ends, and its requests are forwarded for a while. It
// is not filled again, even if it had to be warm. All other caches continue.
func TestLargestFeedIsGivenUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		u := &unequal{frail: newFrail(), resources: map[string]*fakeUpstream{
			resourceName(0): newFake(), resourceName(1): newFake(), resourceName(2): newFake(),
		}}
		feeds := start(t, u)
		const unit = 64 << 10
		var all []*fresh.Feed
		var watches []*watchcache.Cursor
		for i, writes := range [][]int{{1}, {2 * unit}, {unit, 2*unit - 1}} { // bytes
			gvr := schema.GroupVersionResource{Version: "v1", Resource: resourceName(i)}
			for _, size := range writes {
				u.resources[gvr.Resource].set("a", strings.Repeat("x", size))
				openOf(t, feeds, gvr)
				synctest.Wait()
			}
			all = append(all, openOf(t, feeds, gvr))
			watches = append(watches, watchAll(t, all[i].Cache()))
		}
		const small, middle, large = 0, 1, 2
		warming := feeds.Warm([]Part{{Resource: all[large].GVR.GroupResource()}})
		time.Sleep(time.Minute)
		if got := feeds.Bytes(); got < 5*unit || got > 6*unit {
			t.Errorf("all caches take %d bytes", got)
		}
		for _, next := range []int{large, middle, small} {
			feeds.GiveUpLargest()
			time.Sleep(time.Minute)
			for i, f := range all {
				over := i >= next // the later ones are larger
				if _, _, err := watches[i].Poll(nil, 1); errors.Is(err, watchcache.ErrEnded) != over {
					t.Errorf("without %s, a watch of %s: %v", all[next], f, err)
				}
				if again, err := feeds.Open(t.Context(), f.GVR, object.Want{}, object.JSON, 0); errors.Is(err, ErrNoMemory) != over || !over && again != f {
					t.Errorf("without %s, opening %s: %v", all[next], f, err)
				}
			}
			if err := warming.Err(); err != nil {
				t.Errorf("without %s, it is not ready: %v", all[next], err)
			}
		}
		feeds.GiveUpLargest()
		if got := feeds.Bytes(); got > 0 {
			t.Errorf("no caches take %d bytes", got)
		}
		if !feeds.ShortOfMemory() {
			t.Error("requests are forwarded for another reason")
		}
		time.Sleep(noMemoryPause)
		if feeds.ShortOfMemory() {
			t.Error("memory stays short")
		}
		openOf(t, feeds, all[large].GVR)
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

// Under the highest memory pressure, a log still holds a part of its time and its events, if they
// are small.
func TestLimitsUnderMemoryPressure(t *testing.T) {
	full := watchcache.Limits{Age: time.Minute, Events: 1600, Bytes: 1280}
	for logs, want := range map[float64]watchcache.Limits{
		1:          full,
		1.0 / 2:    {Age: 30 * time.Second, Events: 800, Bytes: 640},
		1.0 / 128:  {Age: time.Minute / 16, Events: 100, Bytes: 10},
		1.0 / 9999: {Age: time.Minute / 16, Events: 100, Bytes: 1},
	} {
		if got := (MemoryPressure{Logs: logs}).limits(full); got != want {
			t.Errorf("%v: %+v, want %+v", logs, got, want)
		}
	}
}
