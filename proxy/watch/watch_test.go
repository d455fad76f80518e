package watch

import (
	"bytes"
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/watchproxy/watchproxy/bench/cachetest"
	"github.com/watchproxy/watchproxy/proxy/derived"
	"github.com/watchproxy/watchproxy/proxy/exchange"
	"github.com/watchproxy/watchproxy/proxy/wire"
	"github.com/watchproxy/watchproxy/watchcache"
)

// A watch ends when its time is up: with bookmarks, without bookmarks, and if its client asks for
// bookmarks and there are none. Nothing else wakes the watch.
func TestWatchEnds(t *testing.T) {
	for _, bookmarks := range []bool{false, true} {
		for _, uncached := range []bool{false, true} {
			t.Run(fmt.Sprintf("bookmarks %t, from etcd %t", bookmarks, uncached), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) { watchToItsEnd(t, bookmarks, uncached) })
			})
		}
	}
}

func watchToItsEnd(t *testing.T, bookmarks, uncached bool) {
	c, initial := cachetest.ConfigMaps(t, 1)
	p := paramsOf(t, c, initial)
	c.Resource().NoWatchCache, p.Bookmarks, p.Lifetime = uncached, bookmarks, 200*time.Second
	cachetest.SetBookmark(t, c)
	var written bytes.Buffer
	w := New(p)
	began := time.Now()
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		w.Run(t.Context(), &exchange.ChunkWriter{To: &written})
	}()
	for rv := 3; rv < 20; rv++ { // otherwise bookmarks would have no new resourceVersion
		time.Sleep(10 * time.Second)
		cachetest.Apply(t, c, cachetest.ConfigMap(t, 0, rv))
	}
	<-ended
	if took := time.Since(began); took != 200*time.Second {
		t.Errorf("it took %v", took)
	}
	want := 0
	if bookmarks && !uncached {
		want = 4 // once a minute, and shortly before the end
	}
	if got := bytes.Count(written.Bytes(), []byte("BOOKMARK")); got != want {
		t.Errorf("%d bookmarks instead of %d", got, want)
	}
}

// If the cache has no new resourceVersion for the bookmark at the end of a watch, the bookmark
// comes as soon as there is one, and only once. Earlier bookmarks wait for the next minute.
func TestBookmarkAtTheEndWaits(t *testing.T) {
	for _, test := range []struct {
		lifetime, moved time.Duration
		want            int
	}{
		{3 * time.Second, 1500 * time.Millisecond, 1},
		{3 * time.Second, time.Hour, 0},
		{200 * time.Second, 70 * time.Second, 3}, // in the second and the third minute, and at the end
	} {
		synctest.Test(t, func(t *testing.T) {
			c, initial := cachetest.ConfigMaps(t, 1)
			p := paramsOf(t, c, initial)
			p.Bookmarks, p.Lifetime = true, test.lifetime
			cachetest.SetBookmark(t, c)
			progress := time.AfterFunc(test.moved, func() { c.Writer().Advance(p.Start+1, time.Now()) })
			defer progress.Stop()
			var written bytes.Buffer
			New(p).Run(t.Context(), &exchange.ChunkWriter{To: &written})
			if got := bytes.Count(written.Bytes(), []byte("BOOKMARK")); got != test.want {
				t.Errorf("a watch of %v, a new resourceVersion after %v: %d bookmarks instead of %d", test.lifetime, test.moved, got, test.want)
			}
		})
	}
}

// If a client understands bookmarks, its watch sends an event before it ends for a drain.
// Client-go's informers treat a short, silent watch as broken and list again.
func TestDrainedWatchIsNeverSilent(t *testing.T) {
	for want, bookmarks := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			c, initial := cachetest.ConfigMaps(t, 1)
			p := paramsOf(t, c, initial)
			p.Bookmarks, p.Lifetime = bookmarks, 200*time.Second
			cachetest.SetBookmark(t, c)
			draining, drain := context.WithCancel(t.Context())
			var written bytes.Buffer
			p.Draining, p.DrainShare = draining, time.Second
			w := New(p)
			drain()
			w.Run(t.Context(), &exchange.ChunkWriter{To: &written})
			at := fmt.Appendf(nil, `"resourceVersion":"%d"`, p.Start)
			if bytes.Count(written.Bytes(), []byte("BOOKMARK")) != want || bytes.Count(written.Bytes(), at) != want {
				t.Errorf("with bookmarks %t, a drained watch without events since %[3]d says %[2]q", bookmarks, written.Bytes(), p.Start)
			}
		})
	}
}

// When the cache starts again, the client receives an error, because its watch cannot continue.
// When the cache ends, the client receives no error, because its next watch shows the cause.
func TestWatchOfAnEpochThatIsOver(t *testing.T) {
	for what, over := range map[string]func(*watchcache.Cache){
		"begun anew": func(c *watchcache.Cache) { c.Writer().Reset(nil, 1) },
		"ended":      func(c *watchcache.Cache) { c.Writer().End() },
	} {
		t.Run(what, func(t *testing.T) {
			c, initial := cachetest.ConfigMaps(t, 1)
			p := paramsOf(t, c, initial)
			p.Lifetime = 200 * time.Second
			var written bytes.Buffer
			p.Start = 2
			w := New(p)
			over(c)
			w.Run(t.Context(), &exchange.ChunkWriter{To: &written})
			expired := bytes.Contains(written.Bytes(), []byte(`{"type":"ERROR","object":{"kind":"Status"`)) &&
				bytes.Contains(written.Bytes(), []byte(`"message":"too old resource version: 2 (1)","reason":"Expired","code":410}`))
			if expired != (what == "begun anew") || !expired && written.Len() > 0 {
				t.Errorf("it got %q", written.Bytes())
			}
		})
	}
}

// A watch of events that ends before it has delivered everything may have delivered half of a
// revision. Its client could not resume after that half, so it is told to list.
func TestWatchEndsInsideARevision(t *testing.T) {
	const most = 300 // more than one poll delivers
	for what, end := range map[string]func(*watchcache.Cache, *Params){
		"left behind": func(c *watchcache.Cache, _ *Params) { c.Writer().Distrust() },
		"timed out":   func(_ *watchcache.Cache, p *Params) { p.Lifetime = time.Nanosecond },
	} {
		for _, leases := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, leases %t", what, leases), func(t *testing.T) {
				c, initial := cachetest.ConfigMaps(t, most)
				c.Resource().NoWatchCache = leases
				c.SetLimits(watchcache.Limits{Age: time.Hour, Events: most, Bytes: 1 << 30})
				p := paramsOf(t, c, initial)
				var deletions []watchcache.Change
				for i := range most {
					deletions = append(deletions, watchcache.Change{Deleted: true, Object: cachetest.ConfigMap(t, i, most+2)})
				}
				if err := c.Writer().Apply(deletions, time.Now()); err != nil {
					t.Fatal(err)
				}
				end(c, &p)
				var written bytes.Buffer
				New(p).Run(t.Context(), &exchange.ChunkWriter{To: &written})
				if n := bytes.Count(written.Bytes(), []byte("DELETED")); n >= most || (n > 0) != (what == "timed out") {
					t.Errorf("it delivered %d of %d events", n, most)
				}
				if got := bytes.Contains(written.Bytes(), []byte(`"reason":"Expired","code":410`)); got != leases {
					t.Errorf("told to list: %t; it got %.300q", got, written.Bytes())
				}
			})
		}
	}
}

// paramsOf returns the parameters of a watch of a cache that begins after a state.
func paramsOf(tb testing.TB, c *watchcache.Cache, after watchcache.Snapshot) Params {
	tb.Helper()
	f := cachetest.Filter(tb, c)
	cursor, err := c.WatchAfter(f, after)
	if err != nil {
		tb.Fatal(err)
	}
	return Params{
		Plan: Plan{
			Filter: f, Start: after.ResourceVersion(),
			Form: wire.NewForm(wire.Choice{}, wire.Kind{Kind: "ConfigMap", ListKind: "ConfigMapList", APIVersion: "v1"}),
		},
		Feed: Feed{
			Cache: c, Cursor: cursor,
			Room: new(space), Lag: new(Lag),
		},
		Server: Server{Draining: context.Background()},
	}
}

// space is a Room. Without functions, everything fits.
type space struct {
	hold func(size int64) error
	free func(size int64)
}

func (s *space) Hold(size int64) error {
	if s.hold == nil {
		return nil
	}
	return s.hold(size)
}

func (s *space) Free(size int64) {
	if s.free != nil {
		s.free(size)
	}
}

// owner is an Owner of some functions.
type owner struct {
	review     func(context.Context) error
	unwritable func()
}

func (o *owner) Review(ctx context.Context) error { return o.review(ctx) }

func (o *owner) Unwritable() { o.unwritable() }

func (*owner) Done() {}

// begins returns the initial state of a watch that begins with all objects of a state.
func begins(p Params, state watchcache.Snapshot) *Initial {
	return &Initial{
		Selected: &derived.Selected{Resource: p.Cache.Resource(), Filter: p.Filter}, State: state.Tree,
	}
}

// awaits are the rows of a Table.
type awaits func(rv uint64) (there bool)

func (a awaits) AwaitLate(rv uint64) (there bool) { return a(rv) }

// opened returns a watch that has begun. It is closed at the end.
func opened(tb testing.TB, p Params, out *exchange.ChunkWriter) *Watch {
	tb.Helper()
	w := New(p)
	if !w.Open(tb.Context(), out) {
		tb.Fatal("it does not open")
	}
	tb.Cleanup(w.Close)
	return w
}
