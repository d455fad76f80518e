package upstream

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"go.uber.org/zap"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/watchproxy/watchproxy/watchcache"
	"github.com/watchproxy/watchproxy/watchcache/object"
	"github.com/watchproxy/watchproxy/watchcache/upstream/feed"
	"github.com/watchproxy/watchproxy/watchcache/upstream/fresh"
)

const (
	manyFeeds = 50
	takes     = 10 * time.Millisecond // each request
	// soon is the maximum time that all feeds may take after upstream's return. The next check of
	// /readyz comes within 300 ms. Then each feed sends three requests, eight feeds at a time.
	soon = time.Second
	// asksPerSecond is the maximum number of requests to upstream per second while it is down.
	asksPerSecond = 4
)

var manyOptions = feed.Options{Limits: watchcache.Limits{Age: time.Hour, Events: 1 << 20, Bytes: 1 << 30}}

// startMany returns the feeds, one for each resource.
func startMany(t *testing.T, way http.RoundTripper) (*Feeds, []*fresh.Feed) {
	t.Helper()
	feeds := newFeeds(t, way, prometheus.NewRegistry(), manyOptions, zap.NewNop())
	t.Cleanup(feeds.Stop)
	return feeds, openMany(t, feeds)
}

func openMany(t *testing.T, feeds *Feeds) (all []*fresh.Feed) {
	t.Helper()
	for i := range manyFeeds {
		f, err := feeds.Open(t.Context(), schema.GroupVersionResource{Version: "v1", Resource: resourceName(i)}, object.Want{}, object.JSON, 0)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, f)
	}
	return all
}

// wantFresh waits until feeds have the latest writes, and fails if that takes longer than soon.
func wantFresh(t *testing.T, f *frail, feeds []*fresh.Feed) {
	t.Helper()
	began := time.Now()
	f.set("new", "1")
	ctx, cancel := context.WithTimeout(t.Context(), longEnough)
	defer cancel()
	for _, feed := range feeds {
		if _, err := feed.Cache().WaitFresh(ctx, f.revision()); err != nil {
			t.Fatalf("%s: %v", feed.Feed, err)
		}
	}
	if took := time.Since(began); took > soon {
		t.Errorf("fresh %v after upstream's return, want at most %v", took, soon)
	}
}

// wantFew fails if there are more than asksPerSecond requests in any second, except the first
// request.
func wantFew(t *testing.T, asked []request) {
	t.Helper()
	for i := range asked {
		if i > asksPerSecond && asked[i].at.Sub(asked[i-asksPerSecond].at) < time.Second {
			t.Errorf("%d requests within %v, the last one of %s", asksPerSecond+1, asked[i].at.Sub(asked[i-asksPerSecond].at), asked[i].path)
			return
		}
	}
}

// Upstream is down for a while and then not ready for a while. In that time it gets few requests.
// When it is back, all feeds resume promptly, after few checks and with one relist each.
func TestFeedsGoOnWhenUpstreamIsBack(t *testing.T) {
	for name, c := range map[string]struct {
		outage time.Duration
		paged  bool // the end of a read in pages does not mean that upstream is down
	}{"short": {8 * time.Second, false}, "long": {time.Minute, false}, "paged": {8 * time.Second, true}} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFrail()
				if c.paged {
					f.fakeUpstream.mu.noStream = 422
				}
				f.set("a", "1")
				feeds, all := startMany(t, f)
				time.Sleep(time.Minute)
				began := time.Now()
				f.leave()
				time.Sleep(c.outage * 3 / 4)
				f.turn(unready)
				time.Sleep(c.outage / 4)
				wantFew(t, f.since(began))
				back := time.Now()
				f.turn(up)
				wantFresh(t, f, all)
				checks := 0
				for _, r := range f.since(back) {
					if r.path == "/readyz" {
						checks++
					}
				}
				time.Sleep(longEnough)
				for i := range manyFeeds {
					if got := testutil.ToFloat64(feeds.shared.Metrics.Relists.WithLabelValues("", "v1", resourceName(i), "expired")); got != 1 {
						t.Errorf("feed %d has relisted %v times", i, got)
					}
				}
				each := 3 // a probe, a watch that gets 410, a relist
				if c.paged {
					each++
				}
				if got := len(f.since(back)); got > (each+5)*manyFeeds || checks > 3 {
					t.Errorf("%d requests since upstream is back, %d checks at first", got, checks)
				}
			})
		})
	}
}

// After repeated 410s, a feed pauses.
func TestRepeatedlyExpired(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFrail()
		startMany(t, f)
		time.Sleep(time.Minute)
		f.mu.Lock()
		f.mu.expires = true
		f.mu.Unlock()
		began := time.Now()
		f.elsewhere()
		f.cutStreams(true)
		time.Sleep(time.Minute)
		got := 0
		for _, r := range f.since(began) {
			if strings.HasSuffix(r.path, "/r00") {
				got++
			}
		}
		if got > 60 || got < 5 {
			t.Errorf("%d requests in a minute of nothing but 410", got)
		}
	})
}

// If a single resource fails, the other feeds follow upstream, and the failing one backs off.
func TestOneResourceFails(t *testing.T) {
	for _, code := range []int{429, 500, 503} {
		t.Run(fmt.Sprint(code), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFrail()
				_, all := startMany(t, f)
				time.Sleep(time.Minute)
				f.refuse("r07", code)
				began := time.Now()
				f.elsewhere()
				f.cutStreams(true)
				wantFresh(t, f, append(append([]*fresh.Feed{}, all[:7]...), all[8:]...))
				time.Sleep(time.Minute)
				bad, checks := 0, 0
				for _, r := range f.since(began) {
					switch {
					case strings.HasSuffix(r.path, "/r07"):
						bad++
					case r.path == "/readyz":
						checks++
					}
				}
				if bad < 10 || bad > 60 {
					t.Errorf("%d requests in a minute for the one that fails", bad)
				}
				if checks > bad+5 {
					t.Errorf("%d asks of /readyz for %d failures", checks, bad)
				}
				f.refuse("r07", 0)
				time.Sleep(10 * time.Second)
				if s, err := all[7].Cache().Snapshot(); err != nil || s.Len() != 1 {
					t.Errorf("the one that failed does not follow: %v", err)
				}
			})
		})
	}
}

// Feeds have failed so often that they pause for seconds. Then upstream goes down. Its return ends
// these pauses.
func TestReturnEndsPauses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFrail()
		_, all := startMany(t, f)
		time.Sleep(time.Minute)
		f.leave()
		f.turn(breaking)
		time.Sleep(20 * time.Second)
		began := time.Now()
		time.Sleep(10 * time.Second)
		if got := len(f.since(began)); got > 10*manyFeeds {
			t.Errorf("%d requests within 10 s, and all had failed for 20 s before", got)
		}
		f.turn(away)
		time.Sleep(2 * time.Second)
		f.turn(up)
		wantFresh(t, f, all)
	})
}

// Reads get no response while the streams are silent. The feeds wait for upstream together. When
// upstream is back, they no longer count as lost.
func TestReadsWaitForUpstreamTogether(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFrail()
		_, all := startMany(t, f)
		time.Sleep(time.Second)
		f.turn(away)
		for _, feed := range all {
			if _, err := feed.Fresh(t.Context(), true); !errors.Is(err, fresh.ErrNotFresh) {
				t.Fatalf("upstream is away, and a read got %v", err)
			}
			if _, lost := feed.Lost(); !lost {
				t.Fatal("nobody answered, and upstream is not lost")
			}
		}
		time.Sleep(time.Millisecond) // wait for the reads' requests
		began := time.Now()
		time.Sleep(time.Minute)
		wantFew(t, f.since(began))
		f.turn(up)
		time.Sleep(soon)
		for _, feed := range all {
			if age, lost := feed.Lost(); lost {
				t.Fatalf("%s: upstream is lost for %v, and it is back", feed.Feed, age)
			}
		}
	})
}

// A server that has just started refuses all requests for a while. Feeds ignore these refusals,
// even if they may not read /readyz, and even after a long outage. Their watches continue.
func TestRefusalsOfAServerThatStarts(t *testing.T) {
	for name, c := range map[string]struct {
		outage  time.Duration
		state   state
		lasts   time.Duration
		private bool
	}{
		"ready":                    {8 * time.Second, refusing, time.Second, false},
		"private":                  {8 * time.Second, refusing, time.Second, true},
		"not ready":                {20 * time.Second, starting, 15 * time.Second, false},
		"not ready, a long outage": {time.Minute, starting, 15 * time.Second, false},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFrail()
				f.mu.private = c.private
				_, all := startMany(t, f)
				cursor := watchAll(t, all[0].Cache())
				time.Sleep(time.Minute)
				began := time.Now()
				f.leave()
				time.Sleep(c.outage)
				f.turn(c.state)
				time.Sleep(c.lasts)
				if !c.private {
					wantFew(t, f.since(began))
				}
				f.turn(up)
				if c.private {
					time.Sleep(2 * time.Second) // only the feeds' own pauses are left
				}
				wantFresh(t, f, all)
				if got := drain(t, cursor); got["new"] != "ADDED" {
					t.Errorf("the watch has seen %v", got)
				}
			})
		})
	}
}
