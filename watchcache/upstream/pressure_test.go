package upstream

import (
	"errors"
	"fmt"
	"math"
	"net/http"
	"path"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/watchproxy/watchproxy/watchcache"
	"github.com/watchproxy/watchproxy/watchcache/object"
	"github.com/watchproxy/watchproxy/watchcache/upstream/feed"
	"github.com/watchproxy/watchproxy/watchcache/upstream/fresh"
)

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

// Under memory pressure, the logs of all feeds shrink immediately, but not below a part of their time and
// events if these are small.
func TestLogsAreShed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		fill(f, 3)
		feeds := start(t, f, func(o *feed.Options) { o.Limits.Events = 32_000 })
		feed := openFrom(t, feeds)
		for i := range 2000 {
			f.set("o001", fmt.Sprint(i))
			time.Sleep(100 * time.Millisecond)
		}
		before := feed.Cache().Stats()
		feeds.Memory.SetMemoryPressure(MemoryPressure{Logs: 1.0 / 1000})
		if n := feed.Cache().Stats().LogEvents; n < 400 {
			t.Errorf("%d small events are left", n)
		}
		feeds.Memory.SetMemoryPressure(MemoryPressure{Logs: 1.0 / 10_000})
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
		f.delays(10 * time.Second)
		go func() { _, _ = feeds.Open(t.Context(), configmaps, object.Want{}, object.JSON, 0) }()
		synctest.Wait()
		options := *feeds.shared.Options.Load()
		options.Limits.Events = 1000
		feeds.SetOptions(options)
		feeds.Memory.SetMemoryPressure(MemoryPressure{Logs: 0.5})
		time.Sleep(time.Minute)
		feed := openFrom(t, feeds)
		if got := feed.Cache().Limits().Events; got != 500 {
			t.Errorf("its log holds up to %d events, want 500", got)
		}
	})
}

// If there is no memory for new caches, existing caches continue, and requests for other resources go to
// upstream. A feed whose first state is too large is given up. The next attempt comes only after a pause.
func TestNoNewFeeds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		fill(f, 3)
		feeds := start(t, f)
		old := openFrom(t, feeds)
		f.stall(true) // the state of the next one never ends
		opened := make(chan error)
		go func() {
			_, err := feeds.Open(t.Context(), events, object.Want{}, object.JSON, 0)
			opened <- err
		}()
		time.Sleep(time.Second)
		feeds.Memory.SetMemoryPressure(MemoryPressure{Logs: 1, NoNewFeeds: true})
		if err := <-opened; err == nil {
			t.Error("its cache was handed out")
		}
		refused := func(encoding object.Encoding, gvr schema.GroupVersionResource, want bool) {
			t.Helper()
			if _, err := feeds.Open(t.Context(), gvr, object.Want{}, encoding, 0); errors.Is(err, ErrNoMemory) != want {
				t.Errorf("%s as %s: %v", gvr.Resource, encoding, err)
			}
		}
		refused(object.Protobuf, configmaps, true)
		f.stall(false)
		f.set("new", "1")
		same(t, f, readFresh(t, f, old))
		feeds.Memory.SetMemoryPressure(MemoryPressure{Logs: 1})
		refused(object.Protobuf, configmaps, false)
		refused(object.JSON, events, true)
		time.Sleep(noMemoryPause)
		refused(object.JSON, events, false)
	})
}

// caches is an upstream with caches of several sizes.
type caches struct {
	*unequal
	feeds *Feeds
}

func newCaches(t *testing.T) *caches {
	t.Helper()
	u := &unequal{frail: newFrail(), resources: map[string]*fakeUpstream{}}
	for i := range 3 {
		u.resources[resourceName(i)] = newFake()
	}
	return &caches{u, start(t, u)}
}

// unit is a number of bytes beside which all others are small.
const unit = 64 << 10

// open writes an object of each of the sizes in turn, and returns the cache.
func (c *caches) open(t *testing.T, i int, sizes ...int) *fresh.Feed {
	t.Helper()
	gvr := schema.GroupVersionResource{Version: "v1", Resource: resourceName(i)}
	for _, size := range sizes {
		c.resources[gvr.Resource].set("a", strings.Repeat("x", size))
		openOf(t, c.feeds, gvr)
		synctest.Wait()
	}
	return openOf(t, c.feeds, gvr)
}

// A user who makes the proxy fill more caches when memory is short does not end the old one, which all
// others use. If the new ones are too small together, they do not end in its place.
func TestYoungFeedIsGivenUpFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCaches(t)
		old := c.open(t, 0, 32*unit)
		time.Sleep(noMemoryPause)
		for _, f := range []*fresh.Feed{c.open(t, 1, unit+unit/3), old, c.open(t, 2, unit+unit/4)} {
			c.feeds.Memory.GiveUpLargest()
			synctest.Wait()
			if _, err := c.feeds.Open(t.Context(), f.Feed.GVR, object.Want{}, object.JSON, 0); !errors.Is(err, ErrNoMemory) {
				t.Errorf("%s is not given up in its turn: %v", f.Feed, err)
			}
		}
	})
}

// The cache with the most bytes of objects and log ends, and its requests are forwarded for a while. It
// is not filled again, even if it had to be warm. All other caches continue.
func TestLargestFeedIsGivenUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCaches(t)
		small, middle, large := c.open(t, 0, 1), c.open(t, 1, 2*unit), c.open(t, 2, unit, 2*unit-1)
		warming := c.feeds.Warm([]Part{{Resource: large.Feed.GVR.GroupResource()}})
		time.Sleep(time.Minute)
		if got := c.feeds.Memory.Bytes(); got < 5*unit || got > 6*unit {
			t.Errorf("all caches take %d bytes", got)
		}
		over := map[*fresh.Feed]bool{}
		for _, next := range []*fresh.Feed{large, middle, small} {
			watch := watchAll(t, next.Cache())
			c.feeds.Memory.GiveUpLargest()
			time.Sleep(time.Minute)
			over[next] = true
			if _, _, err := watch.Poll(nil, 1, math.MaxInt); !errors.Is(err, watchcache.ErrEnded) {
				t.Errorf("without %s, its watch: %v", next.Feed, err)
			}
			for _, f := range []*fresh.Feed{small, middle, large} {
				if again, err := c.feeds.Open(t.Context(), f.Feed.GVR, object.Want{}, object.JSON, 0); errors.Is(err, ErrNoMemory) != over[f] || !over[f] && again != f {
					t.Errorf("without %s, opening %s: %v", next.Feed, f.Feed, err)
				}
			}
			if err := warming.Err(); err != nil {
				t.Errorf("without %s, it is not ready: %v", next.Feed, err)
			}
		}
		if !c.feeds.Memory.ShortOfMemory() {
			t.Error("requests are forwarded for another reason")
		}
		time.Sleep(noMemoryPause)
		if c.feeds.Memory.ShortOfMemory() {
			t.Error("memory stays short")
		}
		openOf(t, c.feeds, large.Feed.GVR)
	})
}
