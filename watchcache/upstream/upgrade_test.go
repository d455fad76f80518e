package upstream

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/watchproxy/watchproxy/watchcache"
)

// upgrade replaces the apiserver by another version. If rewrites is true, it writes the stored
// objects with other bytes, at the same resourceVersions. Like every new apiserver, it may have no
// history.
func (f *fakeUpstream) upgrade(version string, rewrites, forget bool) {
	f.locked(func() {
		f.mu.version = version
		f.mu.rev++ // a write to another resource
		for name, object := range f.mu.objects {
			if rewrites {
				f.mu.objects[name] = strings.Replace(object, `"data":{`, `"immutable":false,"data":{`, 1)
			}
		}
	})
	f.cutStreams(forget)
}

// After an upgrade of the apiserver, the cache has the bytes that the new version writes. Watches
// end if there are other bytes, so that their clients list again. Without other bytes, they go on.
func TestUpgrade(t *testing.T) {
	for name, c := range map[string]struct {
		version          string // of the new server; at first it is v1.36.3
		rewrites, forget bool
		paged, saved     bool
		relists          float64
	}{
		"other bytes":                    {version: "v1.37.0", rewrites: true, relists: 1},
		"other bytes, no history":        {version: "v1.37.0", rewrites: true, forget: true, relists: 1},
		"other bytes, by pages":          {version: "v1.37.0", rewrites: true, paged: true, relists: 1},
		"other bytes, restored":          {version: "v1.37.0", rewrites: true, saved: true, relists: 1},
		"other bytes of the same server": {version: "v1.36.3", rewrites: true, forget: true, relists: 1},
		"equal bytes":                    {version: "v1.37.0", relists: 1},
		"equal bytes, by pages":          {version: "v1.37.0", paged: true, relists: 1},
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
				dir := t.TempDir()
				if c.saved {
					saved(t, f, dir)
				}
				feeds := startSaved(t, f, dir)
				source := openFrom(t, feeds)
				cursor := watchAll(t, source.Cache())
				f.upgrade(c.version, c.rewrites, c.forget)
				time.Sleep(time.Minute)

				s, err := source.Fresh(t.Context(), nil)
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

				// A restart begins with the bytes of the new server.
				if err := feeds.Save(); err != nil {
					t.Fatal(err)
				}
				feeds.Stop()
				watches, lists := f.count("watch"), f.count("list")
				reached(t, f, open(t, startSaved(t, f, dir)))
				if restored := f.count("watch") == watches+1 && f.count("list") == lists; !c.paged && c.version != "" && !restored {
					t.Errorf("%d watches, %d lists after a restart", f.count("watch")-watches, f.count("list")-lists)
				}
			})
		})
	}
}

// If several versions answer in turn, the state is read again at most once for each stream.
func TestVersionsTakeTurns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		f.set("a", "1")
		feeds := start(t, f)
		source := openFrom(t, feeds)
		const turns = 10
		for i := range turns {
			f.upgrade([]string{"v1.37.0", "v1.36.3"}[i%2], false, false)
			time.Sleep(time.Minute)
		}
		reached(t, f, source.Cache())
		if got := testutil.ToFloat64(feeds.Metrics.Relists.WithLabelValues("", "v1", "configmaps", "upgraded")); got != turns {
			t.Errorf("%v relists, want %d", got, turns)
		}
		if got := f.count("watch"); got != 1+2*turns {
			t.Errorf("%d watches, want %d", got, 1+2*turns)
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
