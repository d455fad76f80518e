package upstream

import (
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"go.uber.org/zap"

	"github.com/watchproxy/watchproxy/watchcache"
	"github.com/watchproxy/watchproxy/watchcache/cachetest"
	"github.com/watchproxy/watchproxy/watchcache/object"
	"github.com/watchproxy/watchproxy/watchcache/upstream/client"
	"github.com/watchproxy/watchproxy/watchcache/upstream/discovery"
	"github.com/watchproxy/watchproxy/watchcache/upstream/feed"
)

// upgrade replaces the apiserver by another version. If rewrites is true, it writes the stored
// objects with other bytes, at the same resourceVersions. Like every new apiserver, it may have no
// history.
func (f *fakeUpstream) upgrade(version string, rewrites, forget bool) {
	f.locked(func() {
		f.mu.version = version
		f.mu.rev++ // a write to another resource
		for name := range f.mu.objects {
			if rewrites {
				f.rewriteLocked(name)
			}
		}
	})
	f.cutStreams(forget)
}

// rewriteLocked gives all versions of an object other bytes.
func (f *fakeUpstream) rewriteLocked(name string) {
	other := func(object string) string {
		return strings.Replace(object, `"data":{`, `"immutable":false,"data":{`, 1)
	}
	f.mu.objects[name] = other(f.mu.objects[name])
	for i, e := range f.mu.history {
		if e.name() == name {
			f.mu.history[i].object = other(e.object)
		}
	}
}

// After an upgrade of the apiserver, the cache has the bytes that the new version writes. Watches
// end if there are other bytes, so that their clients list again. Without other bytes, they go on.
func TestUpgrade(t *testing.T) {
	for name, c := range map[string]struct {
		version          string // of the new server; at first it is v1.36.3
		rewrites, forget bool
		paged            bool
		relists          float64
	}{
		"other bytes":                    {version: "v1.37.0", rewrites: true, relists: 1},
		"other bytes, no history":        {version: "v1.37.0", rewrites: true, forget: true, relists: 1},
		"other bytes, by pages":          {version: "v1.37.0", rewrites: true, paged: true, relists: 1},
		"other bytes of the same server": {version: "v1.36.3", rewrites: true, forget: true, relists: 1},
		"equal bytes":                    {version: "v1.37.0"},
		"equal bytes, by pages":          {version: "v1.37.0", paged: true},
		"equal bytes, no history":        {version: "v1.37.0", forget: true, relists: 1},
		"the same server":                {version: "v1.36.3"},
		"an unknown version":             {},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFake()
				if c.paged {
					f.mu.noStream = 422
				}
				f.set("a", "1")
				feeds := start(t, f)
				source := openFrom(t, feeds)
				cursor := watchAll(t, source.Cache())
				time.Sleep(time.Minute)
				f.upgrade(c.version, c.rewrites, c.forget)
				time.Sleep(time.Minute)

				s, err := source.Fresh(t.Context(), true)
				if err != nil {
					t.Fatal(err)
				}
				if got := string(s.Get("ns/a").Bytes()); strings.Contains(got, "immutable") != c.rewrites {
					t.Errorf("most recent: %s\nupstream: %s", got, f.state()["a"])
				}
				reached(t, f, source.Cache())
				if _, _, err := cursor.Poll(nil, 100); errors.Is(err, watchcache.ErrEnded) != c.rewrites || err != nil && !c.rewrites {
					t.Errorf("the watch: %v", err)
				}
				if got := testutil.ToFloat64(feeds.Metrics.Relists.WithLabelValues("", "v1", "configmaps", "upgraded")) +
					testutil.ToFloat64(feeds.Metrics.Relists.WithLabelValues("", "v1", "configmaps", "expired")); got != c.relists {
					t.Errorf("%v relists, want %v", got, c.relists)
				}
			})
		})
	}
}

// After an upgrade, a cache is read again if it cannot be compared: a Table, whose cells may differ,
// and a state whose history upstream has compacted.
func TestUpgradeWithoutComparison(t *testing.T) {
	for _, encoding := range []object.Encoding{object.JSON, object.Table} {
		synctest.Test(t, func(t *testing.T) {
			d := &datedUpstream{fakeUpstream: newFake()}
			feeds := start(t, d)
			if _, err := feeds.Open(t.Context(), configmaps, object.Want{}, encoding, 0); err != nil {
				t.Fatal(err)
			}
			time.Sleep(time.Minute)
			d.upgrade("v1.37.0", false, false)
			d.locked(func() {
				if encoding == object.JSON {
					d.mu.compacted = d.mu.rev
				}
			})
			time.Sleep(time.Minute)
			if n := testutil.ToFloat64(feeds.Metrics.Relists.WithLabelValues("", "v1", "configmaps", "upgraded")); n != 1 {
				t.Errorf("encoding %v: %v relists", encoding, n)
			}
		})
	}
}

// The comparison after an upgrade also finds a change that the cache has missed, and counts it.
func TestUpgradeShowsAMissedChange(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		f.set("a", "1")
		feeds := start(t, f)
		source := openFrom(t, feeds)
		time.Sleep(time.Minute)
		f.lose("a")
		f.set("b", "1")
		time.Sleep(time.Second)
		f.upgrade("v1.37.0", false, false)
		time.Sleep(time.Minute)
		reached(t, f, source.Cache())
		if n := testutil.ToFloat64(feeds.Metrics.Checks.WithLabelValues("", "v1", "configmaps", "different")); n != 1 {
			t.Errorf("%v differences are counted", n)
		}
	})
}

// A state that is read again contains the cached objects that are unchanged, not second copies.
func TestStatesShareObjects(t *testing.T) {
	for _, paged := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			f := newFake()
			if paged {
				f.mu.noStream = 422
			}
			f.set("a", "1")
			f.set("b", "1")
			cache := openFrom(t, start(t, f)).Cache()
			before := cachetest.Snapshot(t, cache)
			time.Sleep(time.Minute)
			f.locked(func() { f.rewriteLocked("a") })
			f.upgrade("v1.37.0", false, false)
			time.Sleep(time.Minute)
			after := cachetest.Snapshot(t, cache)
			if cache.Stats().Epoch == 1 || after.Get("ns/a") == before.Get("ns/a") {
				t.Fatal("the state was not read again")
			}
			if after.Get("ns/b") != before.Get("ns/b") {
				t.Errorf("by pages %t: there are two copies of an object", paged)
			}
		})
	}
}

// If several versions answer in turn, the state is compared once for each stream.
func TestVersionsTakeTurns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		f.set("a", "1")
		feeds := start(t, f)
		source := openFrom(t, feeds)
		time.Sleep(time.Minute) // a version that was read at the moment of an upgrade would do for the next stream
		const turns = 10
		for i := range turns {
			f.upgrade([]string{"v1.37.0", "v1.36.3"}[i%2], false, false)
			time.Sleep(time.Minute)
		}
		reached(t, f, source.Cache())
		if lists, watches := f.count("list"), f.count("watch"); lists != turns || watches != 1+turns {
			t.Errorf("%d lists and %d watches after %d turns", lists, watches, turns)
		}
	})
}

// While the cache is compared with an upgraded apiserver, the stream goes on. No event is skipped,
// and a watch that selects by labels goes on, too. A comparison that fails is repeated.
func TestUpgradeSkipsNoEvent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		f.set("a", "1")
		source := openFrom(t, start(t, f))
		cursor := watchAll(t, source.Cache())
		time.Sleep(time.Minute)
		f.locked(func() { f.mu.failing, f.mu.slow = "list", map[string]time.Duration{"list": time.Second} })
		f.upgrade("v1.37.0", false, false)
		const events = 100
		for i := range events {
			f.set("a", fmt.Sprint(i))
			time.Sleep(100 * time.Millisecond)
			if i == events/2 {
				f.locked(func() { f.mu.failing = "" })
			}
		}
		time.Sleep(time.Minute)
		lists := f.count("list")
		f.cutStreams(false)
		time.Sleep(time.Minute)
		if again := f.count("list") - lists; lists < 2 || again != 0 {
			t.Errorf("%d comparisons, %d more with the next stream", lists, again)
		}
		deltas, _, err := cursor.Poll(nil, 1000)
		if err != nil || len(deltas) != events {
			t.Errorf("%d events, %v", len(deltas), err)
		}
	})
}

// The log forgets the state that is compared with an upgraded apiserver, and upstream takes longer
// than a periodic check may. One comparison suffices.
func TestUpgradeOutlastsTheLog(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		f.set("a", "1")
		options := feed.Options{Limits: watchcache.Limits{Age: time.Hour, Events: 1, Bytes: 1 << 20}}
		feeds := newFeeds(t, f, prometheus.NewRegistry(), options, zap.NewNop())
		t.Cleanup(feeds.Stop)
		openFrom(t, feeds)
		time.Sleep(time.Minute)
		f.locked(func() { f.mu.slow = map[string]time.Duration{"list": 2 * checkLimit} })
		f.upgrade("v1.37.0", false, false)
		for i := range 5000 {
			f.set("a", fmt.Sprint(i))
			time.Sleep(time.Millisecond)
		}
		time.Sleep(time.Hour)
		if got := f.count("list"); got != 1 {
			t.Errorf("%d comparisons", got)
		}
	})
}

// Several versions answer in turn, each request another. A state that is read in pages is not read
// again and again.
func TestPagesOfVersionsInTurns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		f.mu.takes, f.mu.noStream = time.Millisecond, 422
		f.set("a", "1")
		asked := 0
		feeds := start(t, roundTrip(func(r *http.Request) (*http.Response, error) {
			if r.URL.Path == "/version" {
				f.locked(func() { asked++; f.mu.version = []string{"v1.36.3", "v1.37.0"}[asked%2] })
			}
			return f.RoundTrip(r)
		}))
		openFrom(t, feeds)
		time.Sleep(time.Hour)
		if lists := f.count("list"); lists > 2 {
			t.Errorf("%d lists", lists)
		}
	})
}

// Upstream warns in every response about the credentials of its request. Only warnings about the
// resource are for clients.
func TestWarningsAboutOwnCredentials(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		const deprecated, own = `299 - "v1 ConfigMap is deprecated"`, `299 - "Use tokens from the TokenRequest API"`
		f.locked(func() { f.mu.warning = deprecated })
		feeds := start(t, roundTrip(func(r *http.Request) (*http.Response, error) {
			resp, err := f.RoundTrip(r)
			if err == nil {
				resp.Header.Add("Warning", own)
			}
			return resp, err
		}))
		if got := openFrom(t, feeds).Warnings(); !slices.Equal(got, []string{deprecated}) {
			t.Errorf("warnings %q", got)
		}
	})
}

// Upstream is upgraded after it has described the resource, and before it has sent the state.
func TestUpgradeBeforeTheState(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		f.set("a", "1")
		const warning = `299 - "v1 ConfigMap is deprecated"`
		var described atomic.Bool
		feeds := start(t, roundTrip(func(r *http.Request) (*http.Response, error) {
			resp, err := f.RoundTrip(r)
			if strings.Contains(r.URL.Path, client.NoSuchNamespace) && described.CompareAndSwap(false, true) {
				f.locked(func() { f.mu.down = errDown })
				time.AfterFunc(10*time.Second, func() {
					f.locked(func() { f.mu.down, f.mu.warning, f.mu.version = nil, warning, "v1.37.0" })
				})
			}
			return resp, err
		}))
		_, _ = feeds.Open(t.Context(), configmaps, object.Want{}, object.JSON, 0) // upstream is down
		time.Sleep(time.Minute)
		if got := openFrom(t, feeds).Warnings(); !slices.Equal(got, []string{warning}) {
			t.Errorf("warnings %q", got)
		}
	})
}

// After an upgrade, upstream answers, but does not send the state. The cache is out of date all the
// time, although upstream describes the resource again and again.
func TestNoStateAfterAnUpgrade(t *testing.T) {
	for _, version := range []string{"v1.36.3", "v1.37.0"} {
		t.Run(version, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFake()
				f.set("a", "1")
				var broken atomic.Bool
				source := openFrom(t, start(t, roundTrip(func(r *http.Request) (*http.Response, error) {
					if broken.Load() && r.URL.Query().Get("sendInitialEvents") == "true" {
						return reply(500, `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"InternalError","code":500}`), nil
					}
					return f.RoundTrip(r)
				})))
				time.Sleep(time.Minute)
				broken.Store(true)
				f.upgrade(version, false, true)
				time.Sleep(time.Second)
				before, _ := source.Lost()
				time.Sleep(10 * time.Minute)
				if age, _ := source.Lost(); age != before+10*time.Minute {
					t.Errorf("lost for %v, ten minutes ago for %v", age, before)
				}
			})
		})
	}
}

// The new version of the apiserver does not serve the resource, and an old one still accepts its
// watch. The feed ends.
func TestUpgradeRemovesTheResource(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		f.set("a", "1")
		var removed atomic.Bool
		feeds := start(t, roundTrip(func(r *http.Request) (*http.Response, error) {
			switch {
			case !removed.Load():
				return f.RoundTrip(r)
			case r.URL.Path == "/api/v1":
				return reply(200, `{"kind":"APIResourceList","groupVersion":"v1","resources":[]}`), nil
			case r.URL.Path == "/version":
				return reply(200, `{"gitVersion":"v1.37.0"}`), nil
			}
			return reply(404, `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"NotFound","code":404}`), nil
		}))
		cursor := watchAll(t, open(t, feeds))
		time.Sleep(time.Minute)
		f.cutStreams(false)
		time.Sleep(500 * time.Millisecond) // the watch goes on
		removed.Store(true)
		time.Sleep(time.Minute)
		if _, _, err := cursor.Poll(nil, 100); !errors.Is(err, watchcache.ErrEnded) {
			t.Errorf("the watch: %v", err)
		}
		if _, err := feeds.Open(t.Context(), configmaps, object.Want{}, object.JSON, 0); !errors.Is(err, discovery.ErrNotServed) {
			t.Errorf("the feed: %v", err)
		}
	})
}

// If another version of the apiserver serves the resource in another way, the feed starts again.
func TestUpgradeServesAnew(t *testing.T) {
	t.Run("history", func(t *testing.T) { upgradeServesAnew(t, false) })
	t.Run("no history", func(t *testing.T) { upgradeServesAnew(t, true) })
}

func upgradeServesAnew(t *testing.T, forget bool) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		f.set("a", "1")
		feeds := start(t, f)
		before := openFrom(t, feeds)
		cursor := watchAll(t, before.Cache())
		const warning = `299 - "v1 ConfigMap is deprecated"`
		f.locked(func() { f.mu.warning = warning })
		time.Sleep(time.Minute)
		f.upgrade("v1.37.0", false, forget)
		time.Sleep(time.Minute)
		if _, _, err := cursor.Poll(nil, 100); !errors.Is(err, watchcache.ErrEnded) {
			t.Errorf("the watch: %v", err)
		}
		after := openFrom(t, feeds)
		if after == before || !slices.Equal(after.Warnings(), []string{warning}) {
			t.Errorf("the same feed: %t, warnings %q", after == before, after.Warnings())
		}
		reached(t, f, after.Cache())
	})
}
