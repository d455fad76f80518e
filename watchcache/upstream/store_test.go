package upstream

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"go.uber.org/zap/zaptest"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/watchproxy/watchproxy/watchcache/object"
	"github.com/watchproxy/watchproxy/watchcache/upstream/feed"
	"github.com/watchproxy/watchproxy/watchcache/upstream/store"
)

// startSaved is like start, with a directory of saved caches.
func startSaved(t *testing.T, way http.RoundTripper, dir string, change ...func(*feed.Options)) *Feeds {
	t.Helper()
	store, err := store.Open(t.Context(), dir, clientOf(way), zaptest.NewLogger(t))
	if err != nil {
		t.Fatal(err)
	}
	feeds := start(t, way, change...)
	if err := feeds.Restore(store); err != nil {
		t.Fatal(err)
	}
	return feeds
}

// savedFile returns the path of the only file in a directory.
func savedFile(t *testing.T, dir string) string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil || len(entries) != 1 {
		t.Fatalf("%v, %v", entries, err)
	}
	return filepath.Join(dir, entries[0].Name())
}

// saved applies some changes to a feed and then saves it.
func saved(t *testing.T, f *fakeUpstream, dir string) (since uint64) {
	t.Helper()
	f.set("a", "1")
	feeds := startSaved(t, f, dir)
	cache := open(t, feeds)
	since = cache.Stats().ResourceVersion
	f.set("b", "1")
	f.set("a", "2")
	f.remove("b")
	reached(t, f, cache)
	if err := feeds.Save(); err != nil {
		t.Fatal(err)
	}
	feeds.Stop()
	if info, err := os.Stat(savedFile(t, dir)); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v", info.Mode(), err)
	}
	return since
}

// A restarted proxy resumes at the state of the previous proxy. It reads no state, has the earlier
// history, and serves no clients until it has caught up.
func TestRestoredFeed(t *testing.T) {
	for name, meanwhile := range map[string]func(*fakeUpstream){
		"nothing":   func(*fakeUpstream) {},
		"changes":   func(f *fakeUpstream) { f.set("c", "1"); f.remove("a") },
		"elsewhere": func(f *fakeUpstream) { f.elsewhere() },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f, dir := newFake(), t.TempDir()
				since := saved(t, f, dir)
				meanwhile(f)
				watches, at := f.count("watch"), f.mu.rev
				feeds := startSaved(t, f, dir)
				cache := open(t, feeds)
				if got := cache.Stats(); got.ResourceVersion < at || got.Since > since {
					t.Errorf("it answers at %d since %d, want %d since %d", got.ResourceVersion, got.Since, at, since)
				}
				if deltas, _, err := watchFrom(t, cache, since).Poll(nil, 100); err != nil || len(deltas) < 3 {
					t.Errorf("%d events since, %v", len(deltas), err)
				}
				f.set("d", "1")
				reached(t, f, cache)
				if f.count("list") != 0 || f.count("watch") != watches+1 {
					t.Errorf("%d lists, %d watches", f.count("list"), f.count("watch")-watches)
				}
				if err := feeds.Save(); err != nil {
					t.Error(err)
				}
			})
		})
	}
}

// An unusable file is detected and removed. The feed then starts as if there were no file.
func TestUselessFiles(t *testing.T) {
	rewrite := func(change func([]byte) []byte) func(*testing.T, *fakeUpstream, string) {
		return func(t *testing.T, _ *fakeUpstream, path string) {
			t.Helper()
			content, err := os.ReadFile(path)
			if err == nil {
				err = os.WriteFile(path, change(content), 0o600)
			}
			if err != nil {
				t.Fatal(err)
			}
		}
	}
	for name, spoil := range map[string]func(*testing.T, *fakeUpstream, string){
		"cut":                    rewrite(func(b []byte) []byte { return b[:len(b)-10] }),
		"cut short":              rewrite(func(b []byte) []byte { return b[:20] }),
		"empty":                  rewrite(func([]byte) []byte { return nil }),
		"longer":                 rewrite(func(b []byte) []byte { return append(b, 0) }),
		"a bit":                  rewrite(func(b []byte) []byte { b[len(b)/2] ^= 1; return b }),
		"not a cache":            rewrite(func([]byte) []byte { return []byte(strings.Repeat("x", 200)) }),
		"of a restored upstream": func(_ *testing.T, f *fakeUpstream, _ string) { f.restore(90, 90) },
		"of another cluster":     func(_ *testing.T, f *fakeUpstream, _ string) { f.locked(func() { f.mu.cluster = "another" }) },
		"of another version":     func(_ *testing.T, f *fakeUpstream, _ string) { f.locked(func() { f.mu.version = "v1.37.0" }) },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f, dir := newFake(), t.TempDir()
				saved(t, f, dir)
				path := savedFile(t, dir)
				spoil(t, f, path)
				feeds := startSaved(t, f, dir)
				cache := open(t, feeds)
				reached(t, f, cache)
				if _, err := os.Stat(path); !errors.Is(err, os.ErrNotExist) {
					t.Errorf("the file is still there: %v", err)
				}
				if err := feeds.Save(); err != nil {
					t.Error(err)
				}
				savedFile(t, dir)
			})
		})
	}
}

// If a resource may no longer be saved, its saved cache is refused, counted and removed.
func TestFileThatMayNotBe(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, dir := newFake(), t.TempDir()
		saved(t, f, dir)
		path := savedFile(t, dir)
		feeds := startSaved(t, f, dir, func(o *feed.Options) {
			o.Resources = map[schema.GroupResource]feed.ResourceOptions{configmaps.GroupResource(): {Aggregated: true}}
		})
		open(t, feeds)
		if _, err := os.Stat(path); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("the file is still there: %v", err)
		}
		if n := testutil.ToFloat64(feeds.metrics.feed.Restores.WithLabelValues("refused")); n != 1 {
			t.Errorf("%v files are refused", n)
		}
	})
}

// If upstream has lost the history since the save, the feed reads the state and turns the
// differences into events.
func TestRestoredFeedIsTooOld(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, dir := newFake(), t.TempDir()
		since := saved(t, f, dir)
		f.set("c", "1")
		f.set("a", "3")
		f.cutStreams(true)
		cache := open(t, startSaved(t, f, dir))
		reached(t, f, cache)
		if got := cache.Stats(); got.Epoch != 1 || got.Since > since {
			t.Errorf("epoch %d since %d", got.Epoch, got.Since)
		}
	})
}

// Files are removed if their caches no longer exist or must not exist.
func TestFilesGoAway(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, dir := newFake(), t.TempDir()
		saved(t, f, dir)
		for name, content := range map[string]string{".x_y.cache-1": "half of a file", "core_v1_none_json.cache": "nonsense"} {
			if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		startSaved(t, f, dir, func(o *feed.Options) { o.Excluded = []schema.GroupResource{configmaps.GroupResource()} })
		if entries, err := os.ReadDir(dir); err != nil || len(entries) != 0 {
			t.Errorf("%v are left, %v", entries, err)
		}
	})
}

// A saved cache is still restored if upstream cannot be reached at first.
func TestRestoreWithoutUpstream(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, dir := newFake(), t.TempDir()
		saved(t, f, dir)
		client := clientOf(f)
		f.locked(func() { f.mu.down = errDown })
		if _, err := store.Open(t.Context(), dir, client, zaptest.NewLogger(t)); !errors.Is(err, errDown) {
			t.Errorf("%v", err)
		}
		f.locked(func() { f.mu.down = nil })
		feeds := startSaved(t, f, dir)
		f.stall(true) // the stream then brings no events
		f.elsewhere()
		soon, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		if _, err := feeds.Open(soon, configmaps, object.Want{}, object.JSON, 0); err != nil {
			t.Errorf("a side watch tells: %v", err)
		}
	})
}

// While no proxy ran, etcd was restored to an earlier state than the file's, and has passed the
// file's resourceVersion again. Upstream accepts a watch from that resourceVersion, but no client
// must see the lost history.
func TestRestoredUpstreamHasGoneOn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, dir := newFake(), t.TempDir()
		for i := range 150 {
			f.set(fmt.Sprintf("old-%d", i), "1")
		}
		saved(t, f, dir)
		f.restore(100, 100)
		for i := range 300 {
			f.set(fmt.Sprintf("new-%d", i), "1")
		}
		feeds := startSaved(t, f, dir)
		feed := openFrom(t, feeds)
		s, err := feed.Cache().Snapshot()
		if err != nil {
			t.Fatal(err)
		}
		for o := range s.Objects("", "") {
			if strings.HasPrefix(o.Name(), "old") {
				t.Fatalf("%s is shown at %d", o.Name(), s.ResourceVersion())
			}
		}
		reached(t, f, feed.Cache())
	})
}

// watchless refuses watches.
type watchless struct{ *fakeUpstream }

// RoundTrip implements http.RoundTripper.
func (w watchless) RoundTrip(req *http.Request) (*http.Response, error) {
	if req.URL.Query().Get("watch") != "" {
		return reply(403, `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"Forbidden","code":403}`), nil
	}
	return w.fakeUpstream.RoundTrip(req)
}

// If the proxy may no longer watch a restored cache's resource, the cache is given up like any
// other cache.
func TestRestoredFeedMayNotWatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, dir := newFake(), t.TempDir()
		saved(t, f, dir)
		f.elsewhere()
		feeds := startSaved(t, watchless{f}, dir)
		time.Sleep(time.Minute)
		began := time.Now()
		if _, err := feeds.Open(t.Context(), configmaps, object.Want{}, object.JSON, 0); err == nil || time.Since(began) > time.Second {
			t.Errorf("after %v: %v", time.Since(began), err)
		}
	})
}

// The store refuses a directory that other users can write to, and a directory that another process
// uses.
func TestDirectoryOfOthers(t *testing.T) {
	dir := t.TempDir()
	open := func() (*store.Store, error) {
		return store.Open(t.Context(), dir, clientOf(newFake()), zaptest.NewLogger(t))
	}
	if err := os.Chmod(dir, 0o777); err != nil {
		t.Fatal(err)
	}
	if _, err := open(); err == nil {
		t.Error("a directory that all can write to is taken")
	}
	if err := os.Chmod(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		first, err := open()
		if err != nil {
			t.Fatal(err)
		}
		if _, err := open(); err == nil {
			t.Error("a directory is taken twice")
		}
		if err := first.Close(); err != nil {
			t.Fatal(err)
		}
	}
}
