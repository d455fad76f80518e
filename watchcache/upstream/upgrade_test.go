package upstream

import (
	"errors"
	"math"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/watchproxy/watchproxy/bench/cachetest"
	"github.com/watchproxy/watchproxy/watchcache"
	"github.com/watchproxy/watchproxy/watchcache/object"
	"github.com/watchproxy/watchproxy/watchcache/upstream/discovery"
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
		fails            bool // at first, the comparison fails
		relists          float64
	}{
		"other bytes":                    {version: "v1.37.0", rewrites: true, relists: 1},
		"other bytes, no history":        {version: "v1.37.0", rewrites: true, forget: true, relists: 1},
		"other bytes, by pages":          {version: "v1.37.0", rewrites: true, paged: true, relists: 1},
		"other bytes, after a failure":   {version: "v1.37.0", rewrites: true, fails: true, relists: 1},
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
				if c.fails {
					f.locked(func() { f.mu.failing = "list" })
					time.AfterFunc(20*time.Second, func() { f.locked(func() { f.mu.failing = "" }) })
				}
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
				if _, _, err := cursor.Poll(nil, 100, math.MaxInt); errors.Is(err, watchcache.ErrEnded) != c.rewrites || err != nil && !c.rewrites {
					t.Errorf("the watch: %v", err)
				}
				if got := testutil.ToFloat64(feeds.shared.Metrics.Relists.WithLabelValues("", "v1", "configmaps", "upgraded")) +
					testutil.ToFloat64(feeds.shared.Metrics.Relists.WithLabelValues("", "v1", "configmaps", "expired")); got != c.relists {
					t.Errorf("%v relists, want %v", got, c.relists)
				}
			})
		})
	}
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

// A state that is read again contains the cached objects that are unchanged, not second copies.
func TestStatesShareObjects(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, source := filledFeed(t, 2)
		cache := source.Cache()
		before := cachetest.Snapshot(t, cache)
		time.Sleep(time.Minute)
		f.locked(func() { f.rewriteLocked("o000") })
		f.upgrade("v1.37.0", false, false)
		time.Sleep(time.Minute)
		after := cachetest.Snapshot(t, cache)
		if after.Get("ns/o000") == before.Get("ns/o000") || after.Get("ns/o001") != before.Get("ns/o001") {
			t.Error("the state was not read again, or there are two copies of an object")
		}
	})
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
			if encoding == object.JSON {
				d.locked(func() { d.mu.compacted = d.mu.rev })
			}
			time.Sleep(time.Minute)
			if n := testutil.ToFloat64(feeds.shared.Metrics.Relists.WithLabelValues("", "v1", "configmaps", "upgraded")); n != 1 {
				t.Errorf("encoding %v: %v relists", encoding, n)
			}
		})
	}
}

// If another version of the apiserver serves the resource in another way, the feed starts again. If it does
// not serve it, and an old server still accepts its watch, the feed ends.
func TestUpgradeServesAnew(t *testing.T) {
	const warning = `299 - "v1 ConfigMap is deprecated"`
	for name, c := range map[string]struct{ forget, removed bool }{
		"history": {}, "no history": {forget: true}, "removed": {removed: true},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFake()
				f.set("a", "1")
				var removed atomic.Bool
				feeds := start(t, roundTrip(func(r *http.Request) (*http.Response, error) {
					switch {
					case !removed.Load() || r.URL.Path == "/version":
						return f.RoundTrip(r)
					case r.URL.Path == "/api/v1":
						return reply(200, `{"kind":"APIResourceList","groupVersion":"v1","resources":[]}`), nil
					}
					return reply(404, `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"NotFound","code":404}`), nil
				}))
				before := openFrom(t, feeds)
				cursor := watchAll(t, before.Cache())
				f.locked(func() { f.mu.warning = warning })
				time.Sleep(time.Minute)
				f.upgrade("v1.37.0", false, c.forget)
				time.Sleep(500 * time.Millisecond) // the watch goes on
				removed.Store(c.removed)
				time.Sleep(time.Minute)
				if _, _, err := cursor.Poll(nil, 100, math.MaxInt); !errors.Is(err, watchcache.ErrEnded) {
					t.Errorf("the watch: %v", err)
				}
				after, err := feeds.Open(t.Context(), configmaps, object.Want{}, object.JSON, 0)
				if c.removed {
					if !errors.Is(err, discovery.ErrNotServed) {
						t.Errorf("the feed: %v", err)
					}
					return
				}
				if after == before || !slices.Equal(after.Warnings(), []string{warning}) {
					t.Errorf("the same feed: %t, warnings %q", after == before, after.Warnings())
				}
				reached(t, f, after.Cache())
			})
		})
	}
}

// After an upgrade, upstream answers, but does not send the state. The cache is out of date all the
// time, although upstream describes the resource again and again.
func TestNoStateAfterAnUpgrade(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, source := filledFeed(t, 1)
		time.Sleep(time.Minute)
		f.answers(func(r *http.Request) (*http.Response, error) {
			if r.URL.Query().Get("sendInitialEvents") == "true" {
				return statusReply(http.StatusServiceUnavailable), nil
			}
			return nil, nil
		})
		f.upgrade("v1.37.0", false, true)
		time.Sleep(time.Second)
		before, _ := source.Lost()
		time.Sleep(10 * time.Minute)
		if age, _ := source.Lost(); age != before+10*time.Minute {
			t.Errorf("lost for %v, ten minutes ago for %v", age, before)
		}
	})
}
