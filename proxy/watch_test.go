package proxy

import (
	"bytes"
	"context"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/watchproxy/watchproxy/proxy/exchange"
	"github.com/watchproxy/watchproxy/watchcache"
)

// A watch ends when its time is up, whether it has bookmarks on the way, asked for some and gets none, or wants none;
// and it wakes for nothing but what there is to do.
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
	r, initial := pageOf(t, 1, 0)
	r.resource.NoWatchCache, r.bookmarks, r.watchSeconds = uncached, bookmarks, 200
	bookmark, _, err := r.resource.ParseBookmark([]byte(`{"kind":"ConfigMap","apiVersion":"v1","metadata":{"resourceVersion":"5","creationTimestamp":null}}`))
	if err != nil {
		t.Fatal(err)
	}
	r.cache.SetBookmark(bookmark)
	cursor, err := r.cache.WatchAfter(r.filter, initial)
	if err != nil {
		t.Fatal(err)
	}
	var written bytes.Buffer
	w := &watching{read: r, cursor: cursor, draining: context.Background(), done: func() {}}
	began := time.Now()
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		w.Run(t.Context(), &exchange.ChunkWriter{To: &written})
	}()
	for rv := uint64(3); rv < 20; rv++ { // else a bookmark says nothing new
		time.Sleep(10 * time.Second)
		o, err := r.resource.ParseObject(fmt.Appendf(nil, `{"metadata":{"name":"c-000000","namespace":"a","uid":"u","resourceVersion":"%d"}}`, rv))
		if err != nil {
			t.Fatal(err)
		}
		if err := r.cache.Apply([]watchcache.Change{{Object: o}}, time.Now()); err != nil {
			t.Fatal(err)
		}
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

// A watch that ends because the server drains has said something, if its client understands it: client-go's informers take one
// that is short and silent for broken, and list anew.
func TestDrainedWatchIsNeverSilent(t *testing.T) {
	for want, bookmarks := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			r, initial := pageOf(t, 1, 0)
			r.bookmarks, r.watchSeconds = bookmarks, 200
			bookmark, _, err := r.resource.ParseBookmark([]byte(`{"kind":"ConfigMap","apiVersion":"v1","metadata":{"resourceVersion":"5","creationTimestamp":null}}`))
			if err != nil {
				t.Fatal(err)
			}
			r.cache.SetBookmark(bookmark)
			cursor, err := r.cache.WatchAfter(r.filter, initial)
			if err != nil {
				t.Fatal(err)
			}
			draining, drain := context.WithCancel(t.Context())
			var written bytes.Buffer
			w := &watching{
				read: r, cursor: cursor, start: initial.ResourceVersion(), draining: draining, drainShare: time.Second, done: func() {},
			}
			drain()
			w.Run(t.Context(), &exchange.ChunkWriter{To: &written})
			at := fmt.Appendf(nil, `"resourceVersion":"%d"`, initial.ResourceVersion())
			if bytes.Count(written.Bytes(), []byte("BOOKMARK")) != want || bytes.Count(written.Bytes(), at) != want {
				t.Errorf("with bookmarks %t a drained watch says %q, nothing having happened since %d", bookmarks, written.Bytes(), initial.ResourceVersion())
			}
		})
	}
}

// When the cache begins anew, a watch is told that it cannot go on from where it is; when the cache ends, nothing: its
// client finds out by coming back.
func TestWatchOfAnEpochThatIsOver(t *testing.T) {
	for what, over := range map[string]func(*watchcache.Cache){
		"begun anew": func(c *watchcache.Cache) { c.Reset(nil, 1) },
		"ended":      (*watchcache.Cache).End,
	} {
		t.Run(what, func(t *testing.T) {
			r, initial := pageOf(t, 1, 0)
			r.watchSeconds = 200
			cursor, err := r.cache.WatchAfter(r.filter, initial)
			if err != nil {
				t.Fatal(err)
			}
			var written bytes.Buffer
			w := &watching{read: r, cursor: cursor, draining: context.Background(), done: func() {}, start: 2}
			over(r.cache)
			w.Run(t.Context(), &exchange.ChunkWriter{To: &written})
			expired := bytes.Contains(written.Bytes(), []byte(`{"type":"ERROR","object":{"kind":"Status"`)) &&
				bytes.Contains(written.Bytes(), []byte(`"message":"too old resource version: 2 (1)","reason":"Expired","code":410}`))
			if expired != (what == "begun anew") || !expired && written.Len() > 0 {
				t.Errorf("it got %q", written.Bytes())
			}
		})
	}
}

// A relist jumps: a watch goes on, and shows deletions at the last resourceVersion before it. The
// feed of a proxy behind this one keeps what it sees for others, so it has to list.
func TestWatchAcrossARelist(t *testing.T) {
	const deleted = `{"type":"DELETED","object":{"kind":"ConfigMap","apiVersion":"v1","metadata":{"name":"c-%06d","namespace":"a","uid":"u","resourceVersion":"3"}}}` + "\n"
	const expired = `{"type":"ERROR","object":{"kind":"Status","apiVersion":"v1","metadata":{},"status":"Failure",` +
		`"message":"too old resource version: 3 (20)","reason":"Expired","code":410}}` + "\n"
	for agent, want := range map[string]string{
		"kubelet/v1.36.3": fmt.Sprintf(deleted+deleted, 0, 1),
		feedAgent:         expired,
	} {
		synctest.Test(t, func(t *testing.T) {
			r, _ := pageOf(t, 2, 0)
			r.Header.Set("User-Agent", agent)
			r.rv, r.watchSeconds = 3, 1
			s := &Server{}
			s.options.Store(&Options{Limits: exchange.Limits{UserWatches: 1}})
			resp, err := s.watch(t.Context(), r)
			if err != nil {
				t.Fatal(err)
			}
			if err := r.cache.Replace(nil, 20, time.Now()); err != nil {
				t.Fatal(err)
			}
			var written bytes.Buffer
			resp.Stream.(*watching).draining = context.Background()
			resp.Stream.Run(t.Context(), &exchange.ChunkWriter{To: &written})
			if got := written.String(); !strings.Contains(got, want) || strings.Contains(got, "ERROR") != (agent == feedAgent) {
				t.Errorf("%s got %q instead of %q", agent, got, want)
			}
		})
	}
}
