package upstream

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/watchproxy/watchproxy/watchcache"
	"github.com/watchproxy/watchproxy/watchcache/object"
	"github.com/watchproxy/watchproxy/watchcache/upstream/client"
	"github.com/watchproxy/watchproxy/watchcache/upstream/feed"
	"github.com/watchproxy/watchproxy/watchcache/upstream/fresh"
	"github.com/watchproxy/watchproxy/watchcache/upstream/servers"
)

// While upstream gives no sign of life, a read waits for a second only. The fill goes on.
func TestReadsOfAStuckFeed(t *testing.T) {
	for name, stuck := range map[string]string{"the state": "state", "the description": "probe"} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				const takes = 3200 * time.Millisecond
				f := newFake()
				f.set("a", "1")
				f.locked(func() { f.mu.slow = map[string]time.Duration{stuck: takes} })
				feeds := start(t, f)
				began := time.Now()
				for range 3 {
					asked := time.Now()
					_, err := feeds.Open(t.Context(), configmaps, object.Want{}, object.JSON, 0)
					if !errors.Is(err, watchcache.ErrNoProgress) || !errors.Is(err, watchcache.ErrNotReady) || time.Since(asked) != feed.Patience {
						t.Fatalf("%v after %v", err, time.Since(asked))
					}
				}
				reached(t, f, open(t, feeds))
				if took := time.Since(began); took != takes || f.count("watch") != 1 {
					t.Errorf("filled after %v, by %d watches", took, f.count("watch"))
				}
			})
		})
	}
}

// A read waits as long as the state arrives.
func TestReadsOfASlowState(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		f.set("a", "1")
		const pause, pauses = 900 * time.Millisecond, 12
		feeds := start(t, roundTrip(func(req *http.Request) (*http.Response, error) {
			if req.URL.Query().Get("sendInitialEvents") != "true" {
				return f.RoundTrip(req)
			}
			r, w := io.Pipe()
			resp := reply(200, "")
			resp.Body = r
			go func() {
				for i := range pauses {
					if !client.Sleep(req.Context(), pause) {
						break
					}
					_, _ = io.WriteString(w, `{"type":"ADDED","object":`+objectJSON(fmt.Sprintf("o%02d", i), fmt.Sprint(i), 90, "1")+"}\n")
				}
				_, _ = io.WriteString(w, `{"type":"BOOKMARK","object":`+bookmarkJSON(101, true)+"}\n")
				<-req.Context().Done()
				w.CloseWithError(req.Context().Err())
			}()
			return resp, nil
		}))
		began := time.Now()
		source, err := feeds.Open(t.Context(), configmaps, object.Want{}, object.JSON, 0)
		if err != nil || time.Since(began) != pause*pauses {
			t.Fatalf("%v after %v", err, time.Since(began))
		}
		if got := source.Cache().Stats().Objects; got != pauses {
			t.Errorf("%d objects", got)
		}
	})
}

// A feed that waits for its turn, because others open their streams, is no feed without progress.
func TestReadsOfAQueuedFeed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const takes = 3 * time.Second
		f := newFake()
		f.set("a", "1")
		feeds := start(t, f)
		for range 8 {
			end, err := feeds.Health.Turns.Wait(t.Context(), func() servers.Urgency { return servers.Urgency{Watched: true} })
			if err != nil {
				t.Fatal(err)
			}
			time.AfterFunc(takes, end)
		}
		began := time.Now()
		if _, err := feeds.Open(t.Context(), configmaps, object.Want{}, object.JSON, 0); err != nil || time.Since(began) != takes {
			t.Errorf("%v after %v", err, time.Since(began))
		}
	})
}

// If a stream falls silent before its state is complete, the state is read in pages.
func TestSilentStateIsReadInPages(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		f.set("a", "1")
		f.stall(true)
		feeds := start(t, f)
		ctx, cancel := context.WithTimeout(t.Context(), longEnough)
		defer cancel()
		began := time.Now()
		for {
			_, err := feeds.Open(ctx, configmaps, object.Want{}, object.JSON, 0)
			if err == nil {
				break
			}
			if !errors.Is(err, watchcache.ErrNoProgress) {
				t.Fatal(err)
			}
		}
		if took := time.Since(began); took > 6*time.Second || f.count("list") != 1 {
			t.Errorf("filled after %v, by %d lists", took, f.count("list"))
		}
		f.stall(false)
		reached(t, f, open(t, feeds))
		if got := testutil.ToFloat64(feeds.Metrics.Relists.WithLabelValues("", "v1", "configmaps", "no-state")); got != 1 {
			t.Errorf("%v relists", got)
		}

		// The next state comes from a stream again, which works now.
		f.elsewhere()
		f.cutStreams(true)
		reached(t, f, open(t, feeds))
		if f.count("list") != 1 {
			t.Errorf("%d lists", f.count("list"))
		}
	})
}

// If proofs fail, a read waits for the next proof for a second only. So it does not fail later than
// at upstream. Once a proof has succeeded, reads wait for their proof again.
func TestFailingProofs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const takes = 2 * time.Second
		f := newFake()
		for i := range 200 { // more than a tiny collection, so that there are probes
			f.set(string(rune('a'+i%26))+string(rune('a'+i/26)), "1")
		}
		source := openFrom(t, start(t, f))
		asks := func(want error, after time.Duration) {
			t.Helper()
			began := time.Now()
			if _, err := source.Fresh(t.Context(), nil); !errors.Is(err, want) || time.Since(began) != after {
				t.Errorf("%v after %v, want %v after %v", err, time.Since(began), want, after)
			}
		}
		asks(nil, 0)
		down := func(on bool) {
			f.locked(func() {
				f.mu.slow = map[string]time.Duration{"probe": takes}
				if f.mu.failing = map[bool]string{true: "probe"}[on]; !on {
					f.mu.slow = nil
				}
			})
		}
		down(true)
		asks(fresh.ErrNotFresh, takes)
		for range 5 {
			asks(watchcache.ErrNoProgress, feed.Patience)
		}
		time.Sleep(time.Minute)
		down(false)
		asks(nil, 0)
		f.locked(func() { f.mu.slow = map[string]time.Duration{"probe": 2 * feed.Patience} })
		asks(nil, 2*feed.Patience)
		f.locked(func() { f.mu.slow = map[string]time.Duration{"probe": time.Hour} })
		ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
		defer cancel()
		if _, err := source.Fresh(ctx, nil); !errors.Is(err, watchcache.ErrNoProgress) {
			t.Errorf("%v", err)
		}
	})
}
