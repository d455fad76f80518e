package proxy

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/watchproxy/watchproxy/bench/cachetest"
	"github.com/watchproxy/watchproxy/proxy/exchange"
	"github.com/watchproxy/watchproxy/proxy/read"
	"github.com/watchproxy/watchproxy/watchcache"
	"github.com/watchproxy/watchproxy/watchcache/object"
)

// stuckFeeds fill their only cache at a given time, without progress before.
type stuckFeeds struct {
	oneFeed
	filled time.Time
}

// Open implements Feeds.
func (f stuckFeeds) Open(ctx context.Context, _ schema.GroupVersionResource, _ object.Want, _ object.Encoding, _ uint64) (read.Feed, error) {
	select {
	case <-time.After(time.Until(f.filled)):
		return f.feed, nil
	case <-time.After(time.Second):
		return nil, fmt.Errorf("%w: a test", watchcache.ErrNoProgress)
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// stuckFeed cannot be proved current before a given time.
type stuckFeed struct {
	*rawFeed
	proved time.Time
	lost   bool // until then
}

// Lost implements Feed.
func (f stuckFeed) Lost() (time.Duration, bool) {
	return time.Minute, f.lost && time.Now().Before(f.proved)
}

// Fresh implements Feed.
func (f stuckFeed) Fresh(ctx context.Context, waits bool) (watchcache.Snapshot, error) {
	select {
	case <-time.After(time.Until(f.proved)):
		return f.rawFeed.Fresh(ctx, waits)
	case <-time.After(time.Second):
		return watchcache.Snapshot{}, errors.New("a test")
	}
}

// Reads of a cache that makes no progress, and watches of one that cannot be proved current, are
// forwarded after a second, at most as many at a time as there are slots. All others wait. Watches of
// one that has lost upstream are forwarded at once, and wait likewise.
func TestStuckCache(t *testing.T) {
	const watches = "watch=true&timeoutSeconds=1"
	for name, test := range map[string]struct {
		fills     time.Duration // the cache is filled, or proved current, after this time
		query     string
		lost      bool
		readers   int
		forwarded int64
	}{
		"a few readers":       {time.Minute, "resourceVersion=0", false, 5, 5},
		"as many as slots":    {time.Minute, "resourceVersion=0", false, fallbackReads, fallbackReads},
		"more than slots":     {25 * time.Second, "resourceVersion=0", false, 3 * fallbackReads, fallbackReads},
		"it fills in no time": {time.Second / 2, "resourceVersion=0", false, 100, 0},
		"lost watches":        {25 * time.Second, watches, true, 3 * fallbackWatches, fallbackWatches},
		"watches":             {25 * time.Second, watches, false, 3 * fallbackWatches, fallbackWatches},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c, _ := cachetest.ConfigMaps(t, 1)
				var forwarded atomic.Int64
				began := time.Now()
				feeds := read.Feeds(stuckFeeds{oneFeed{feed: &rawFeed{c}}, began.Add(test.fills)})
				lasts := time.Duration(0)
				if test.query == watches {
					feeds, lasts = oneFeed{feed: stuckFeed{&rawFeed{c}, began.Add(test.fills), test.lost}}, time.Second
				}
				limits := testLimits()
				limits.Forwards = 10 * test.readers
				s, l := serveFeeds(t, feeds, func(w http.ResponseWriter, _ *http.Request) {
					forwarded.Add(1)
					time.Sleep(30 * time.Second) // upstream is slow, too
					_, _ = io.WriteString(w, "upstream")
				}, limits, nil)
				client := clientTo(t, l, "h2")
				var reading sync.WaitGroup
				for i := range test.readers {
					reading.Go(func() {
						_, body := client.get(t, fmt.Sprintf("/api/v1/namespaces/a/configmaps?labelSelector=x!=%d&%s", i, test.query))
						took, want := time.Since(began), test.fills+lasts
						if body == "upstream" && test.lost {
							want = 30 * time.Second
						} else if body == "upstream" {
							want = 31 * time.Second
						} else if !strings.Contains(body, `"kind":"ConfigMap`) {
							t.Errorf("%.200s", body)
						}
						if took < want || took > want+fallbackLook {
							t.Errorf("a response after %v, want %v", took, want)
						}
					})
				}
				reading.Wait()
				if got := forwarded.Load(); got != test.forwarded {
					t.Errorf("%d reads were forwarded, want %d", got, test.forwarded)
				}
				if n := s.limits.queues.fallbackReads.Taken() + s.limits.queues.fallbackWatches.Taken(); n != 0 {
					t.Errorf("%d slots are left over", n)
				}
			})
		})
	}
}

// leaving is the context of a client that leaves once its read has a slot.
type leaving struct {
	context.Context
	s *Server
}

// Err implements context.Context.
func (l leaving) Err() error {
	if l.s.limits.queues.fallbackReads.Taken() > 0 {
		return context.Canceled
	}
	return l.Context.Err()
}

// A client that leaves with a slot gives the slot back.
func TestLeavesWithASlot(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, _ := cachetest.ConfigMaps(t, 1)
		feeds := stuckFeeds{oneFeed{feed: &rawFeed{c}}, time.Now().Add(time.Hour)}
		s, _ := serveFeeds(t, feeds, http.NotFound, testLimits(), nil)
		req := &exchange.Request{Method: http.MethodGet, Target: "/api/v1/namespaces/a/configmaps?resourceVersion=0", Header: http.Header{}}
		req.SplitTarget()
		req.Route = exchange.ParseRoute(req.Method, req.Path)
		s.answer(leaving{t.Context(), s}, req).Close(0)
		if n := s.limits.queues.fallbackReads.Taken(); n != 0 {
			t.Errorf("%d slots are left over", n)
		}
	})
}

// A read whose own timeout is short does not ask the cache again and again.
func TestStuckCacheAndShortTimeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, _ := cachetest.ConfigMaps(t, 1)
		var opened atomic.Int64
		s, l := serveFeeds(t, oneFeed{feed: silentFeed{&rawFeed{c}}, opening: func(context.Context) { opened.Add(1) }}, http.NotFound, testLimits(), nil)
		for s.limits.queues.fallbackReads.Try("a", 1) {
		}
		began := time.Now()
		_, body := clientTo(t, l, "h2").get(t, "/api/v1/namespaces/a/configmaps?timeout=100ms")
		if took := time.Since(began); !strings.Contains(body, `"code":429`) || took > fallbackWait+time.Second || opened.Load() > 3 {
			t.Errorf("%s after %v, the cache was asked %d times", body, took, opened.Load())
		}
	})
}

// silentFeed is a feed whose upstream does not answer.
type silentFeed struct{ *rawFeed }

// Fresh implements Feed.
func (silentFeed) Fresh(ctx context.Context, _ bool) (watchcache.Snapshot, error) {
	<-ctx.Done()
	return watchcache.Snapshot{}, watchcache.ErrNoProgress
}
