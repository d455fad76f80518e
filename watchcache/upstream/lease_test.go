package upstream

import (
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/watchproxy/watchproxy/watchcache"
	"github.com/watchproxy/watchproxy/watchcache/upstream/batch"
	"github.com/watchproxy/watchproxy/watchcache/upstream/feed"
	"github.com/watchproxy/watchproxy/watchcache/upstream/fresh"
)

var events = schema.GroupVersionResource{Version: "v1", Resource: "events"}

// throttle lets a number of bytes of all watches pass, and then cuts or holds the streams.
type throttle struct {
	*fakeUpstream
	left atomic.Int64
	on   atomic.Bool
	hold chan struct{} // streams are held until it is closed; nil to cut them once
}

// RoundTrip implements http.RoundTripper.
func (w *throttle) RoundTrip(req *http.Request) (*http.Response, error) {
	resp, err := w.fakeUpstream.RoundTrip(req)
	if err == nil && req.URL.Query().Get("watch") != "" {
		resp.Body = &throttled{resp.Body, w}
	}
	return resp, err
}

// after stops the streams after n more bytes.
func (w *throttle) after(n int) {
	w.left.Store(int64(n))
	w.on.Store(true)
}

type throttled struct {
	io.ReadCloser
	way *throttle
}

func (b *throttled) Read(into []byte) (n int, err error) {
	if b.way.on.Load() {
		left := b.way.left.Load()
		if left == 0 {
			if b.way.hold == nil {
				b.way.on.Store(false)
				return 0, io.ErrUnexpectedEOF
			}
			<-b.way.hold
			b.way.on.Store(false)
		} else {
			into = into[:min(int64(len(into)), left)]
		}
	}
	if n, err = b.ReadCloser.Read(into); b.way.on.Load() { // the read began before the limit was set
		b.way.left.Store(max(0, b.way.left.Load()-int64(n)))
	}
	return n, err
}

// leased are the names of the objects that share a lease.
func leased(n int) (names []string) {
	for i := range n {
		names = append(names, fmt.Sprintf("o%03d", i))
	}
	return names
}

// deletions returns what a watch sees of a lease that expires at rv.
func deletions(names []string, rv uint64) (all []string) {
	for _, name := range names {
		all = append(all, fmt.Sprintf("DELETED %s %d", name, rv))
	}
	return all
}

func told(t *testing.T, cursor *watchcache.Cursor) (all []string) {
	t.Helper()
	deltas, _, err := cursor.Poll(nil, 1<<20)
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range deltas {
		all = append(all, fmt.Sprintf("%s %s %d", d.Type, d.Object.Name(), d.RV))
	}
	return all
}

func wantAll(t *testing.T, cursor *watchcache.Cursor, want []string) {
	t.Helper()
	if got := told(t, cursor); fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("the watch has seen %d events, want %d: %.300q", len(got), len(want), got)
	}
}

// openEvents opens a feed of events with n objects in a lease and others beside them.
func openEvents(t *testing.T, w *throttle, n, others int) *fresh.Feed {
	t.Helper()
	fill(w.fakeUpstream, n+others)
	feed := openOf(t, start(t, w), events)
	synctest.Wait()
	return feed
}

// A lease expires, and the stream pauses between two of the deletions. Meanwhile, nobody sees half
// of the revision: not a list, nor a list and a watch from there, nor a watch that begins with the
// state, nor an exact read, nor a most recent read. All watches see each deletion once.
func TestExpiredLease(t *testing.T) {
	const n = 5
	names := leased(n)
	for _, others := range []int{0, 1, 7, fewObjects, feed.SmallObjects} {
		for seen := range n {
			t.Run(fmt.Sprintf("others=%d,seen=%d", others, seen), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					w := &throttle{fakeUpstream: newFake(), hold: make(chan struct{})}
					events := openEvents(t, w, n, others)
					cache := events.Cache()
					before := cache.Stats().ResourceVersion
					open := watchFrom(t, cache, before)
					size := len(deletedLine(w.fakeUpstream, names[0]))
					w.after(seen * size)
					w.expire(names...)
					at := w.revision()
					time.Sleep(10 * time.Second) // longer than the stream is given

					s, err := cache.Snapshot()
					if err != nil || s.ResourceVersion() >= at || s.Len() != n+others {
						t.Errorf("a list shows %d of %d objects at %d: %v", s.Len(), n+others, s.ResourceVersion(), err)
					}
					if s, err := cache.SnapshotAt(at); err == nil {
						t.Errorf("an exact list shows %d objects", s.Len())
					}
					after, err := cache.WatchAfter(mustFilter(t, cache), s)
					if err != nil {
						t.Fatal(err)
					}
					defer after.Close()
					listed := watchFrom(t, cache, s.ResourceVersion())
					recent, err := events.Fresh(t.Context(), true) // a large collection is left to upstream
					if small := others+n <= feed.SmallObjects; err == nil != small || small && recent.ResourceVersion() < at {
						t.Errorf("a most recent read of %d objects shows the state at %d: %v", recent.Len(), recent.ResourceVersion(), err)
					}
					if err == nil {
						same(t, w.fakeUpstream, recent)
					}
					beyond := watchFrom(t, cache, max(at, recent.ResourceVersion()))

					close(w.hold)
					time.Sleep(time.Minute)
					for _, cursor := range []*watchcache.Cursor{open, after, listed} {
						wantAll(t, cursor, deletions(names, at))
					}
					wantAll(t, beyond, nil)
					s, err = cache.SnapshotAt(at)
					if err != nil || s.Len() != others || cache.Stats().ResourceVersion != at {
						t.Errorf("%d objects at %d, want %d: %v", s.Len(), cache.Stats().ResourceVersion, others, err)
					}
					if w.count("watch") != 1 {
						t.Errorf("%d watches, want 1", w.count("watch"))
					}
				})
			})
		}
	}
}

func deletedLine(f *fakeUpstream, name string) string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return `{"type":"DELETED","object":` + f.mu.objects[name] + "}\n"
}

// A lease expires, and no event follows. Upstream counts the objects that are left. Then the
// revision is complete, and the deletions are shown. Deletions with an event behind them need no
// count.
func TestLeaseExpiresSlowly(t *testing.T) {
	for _, others := range []int{0, 1, 7} {
		for _, follows := range []bool{false, true} {
			t.Run(fmt.Sprintf("others=%d,follows=%t", others, follows), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					w := &throttle{fakeUpstream: newFake()}
					cache := openEvents(t, w, 300, others).Cache()
					cursor := watchAll(t, cache)
					w.expire(leased(300)...)
					at := w.revision()
					want, counts := deletions(leased(300), at), 1
					if follows {
						w.set("z", "1")
						want = append(want, fmt.Sprintf("ADDED z %d", at+1))
					}
					if follows || others == 0 {
						counts = 0
					}
					synctest.Wait()
					if !follows {
						wantAll(t, cursor, nil)
						time.Sleep(batch.Quiet)
						synctest.Wait()
					}
					wantAll(t, cursor, want)
					time.Sleep(time.Minute)
					if got := w.count("metadata"); got != counts {
						t.Errorf("upstream has counted %d times, want %d", got, counts)
					}
				})
			})
		}
	}
}

// The stream breaks after any byte of a revision of three deletions, or before the revision's end is
// known. A read that waits for the first event gets all of it. The next stream delivers the revision
// again. Nobody has seen half of it.
func TestLeaseIsCut(t *testing.T) {
	const n, others = 3, 2
	probe := newFake()
	fill(probe, n)
	size := len(deletedLine(probe, "o000"))
	for cut := range n*size + 1 {
		synctest.Test(t, func(t *testing.T) {
			w := &throttle{fakeUpstream: newFake()}
			cache := openEvents(t, w, n, others).Cache()
			before := cache.Stats().ResourceVersion
			cursor := watchAll(t, cache)
			w.after(cut)
			w.expire(leased(n)...)
			at := w.revision()
			for {
				s, err := cache.Snapshot()
				if err != nil {
					t.Fatal(err)
				}
				if want := map[uint64]int{before: n + others, at: others}[s.ResourceVersion()]; s.Len() != want {
					t.Fatalf("cut after %d bytes: %d objects at %d, want %d", cut, s.Len(), s.ResourceVersion(), want)
				}
				if s.ResourceVersion() == at {
					break
				}
				if _, err := cache.WaitFresh(t.Context(), at); err != nil {
					t.Fatal(err)
				}
			}
			wantAll(t, cursor, deletions(leased(n), at))
			same(t, w.fakeUpstream, readSnapshot(t, cache))
		})
	}
}

func readSnapshot(t *testing.T, cache *watchcache.Cache) watchcache.Snapshot {
	t.Helper()
	s, err := cache.Snapshot()
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// The stream breaks inside a revision, and upstream no longer has the history. The relist shows all
// deletions of the revision, and watches continue.
func TestLeaseIsCutAndExpired(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &throttle{fakeUpstream: newFake()}
		cache := openEvents(t, w, 40, 2).Cache()
		epoch, before := cache.Stats().Epoch, cache.Stats().ResourceVersion
		cursor := watchAll(t, cache)
		w.after(5 * len(deletedLine(w.fakeUpstream, "o000")))
		w.expire(leased(40)...)
		w.locked(func() { w.mu.oldest = w.mu.rev })
		time.Sleep(time.Minute)
		same(t, w.fakeUpstream, readSnapshot(t, cache))
		got := told(t, cursor)
		if len(got) != 40 || cache.Stats().Epoch != epoch {
			t.Errorf("epoch %d after %d, and the watch from %d has seen %s", cache.Stats().Epoch, epoch, before, strings.Join(got, ", "))
		}
	})
}

// Upstream's stream pauses inside a revision of a resource whose events all have revisions of their
// own, as after a range was deleted in etcd. The state at the revision was shown too early. The
// feed relists, watches continue, and the wrong states are served no longer.
func TestRestOfAPublishedRevision(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &throttle{fakeUpstream: newFake(), hold: make(chan struct{})}
		fill(w.fakeUpstream, 4)
		cache := openOf(t, start(t, w), configmaps).Cache()
		synctest.Wait()
		epoch := cache.Stats().Epoch
		cursor := watchAll(t, cache)
		w.after(len(deletedLine(w.fakeUpstream, "o000")))
		w.expire("o000", "o001")
		at := w.revision()
		synctest.Wait()
		half := readSnapshot(t, cache)
		if half.ResourceVersion() != at || half.Len() != 3 {
			t.Fatalf("%d objects at %d", half.Len(), half.ResourceVersion())
		}
		wantAll(t, cursor, deletions(leased(1), at))
		w.elsewhere()
		w.elsewhere()
		close(w.hold)
		time.Sleep(time.Minute)
		same(t, w.fakeUpstream, readSnapshot(t, cache))
		wantAll(t, cursor, deletions(leased(2), at)[1:])
		if got := cache.Stats().Epoch; got != epoch {
			t.Errorf("epoch %d after %d: all watches have ended", got, epoch)
		}
		if s, err := cache.SnapshotAt(at); err == nil {
			t.Errorf("an exact list shows %d objects at the revision that was shown by halves", s.Len())
		}
		if _, err := cache.WatchAfter(mustFilter(t, cache), half); err == nil {
			t.Error("a watch can begin at half of a revision")
		}
	})
}

// If the self-check finds that the cache has missed deletions, the feed relists. Watches continue
// and see the deletions. The wrong states are served no longer.
func TestSelfCheckContinuesWatches(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		fill(f, 4)
		feeds := start(t, f)
		cache := open(t, feeds)
		epoch := cache.Stats().Epoch
		cursor := watchAll(t, cache)
		f.lose("o001")
		f.bookmark()
		synctest.Wait()
		at := cache.Stats().ResourceVersion
		if at != f.revision() {
			t.Fatalf("the cache is at %d", at)
		}
		f.elsewhere()
		feeds.check(feeds.list()[0])
		time.Sleep(time.Minute)
		same(t, f, readSnapshot(t, cache))
		wantAll(t, cursor, []string{fmt.Sprintf("DELETED o001 %d", at+1)})
		if got := cache.Stats().Epoch; got != epoch {
			t.Errorf("epoch %d after %d: all watches have ended", got, epoch)
		}
		if s, err := cache.SnapshotAt(at); err == nil {
			t.Errorf("an exact list shows %d objects", s.Len())
		}
		if _, err := cache.Watch(mustFilter(t, cache), at); err == nil {
			t.Error("a watch can begin at a wrong state")
		}
	})
}

// CountAt counts without reading the collection, and lists what upstream does not count.
func TestCountAt(t *testing.T) {
	for _, n := range []int{0, 1, 2, 9} {
		f := newFake()
		fill(f, n)
		feed := openOf(t, start(t, f), events)
		got, err := feed.Client.CountAt(t.Context(), feed.Cache().Resource(), f.revision())
		if err != nil || got != n {
			t.Errorf("counted %d objects, want %d: %v", got, n, err)
		}
	}
}
