package upstream

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/watchproxy/watchproxy/watchcache"
	"github.com/watchproxy/watchproxy/watchcache/object"
	"github.com/watchproxy/watchproxy/watchcache/upstream/client"
	"github.com/watchproxy/watchproxy/watchcache/upstream/feed"
	"github.com/watchproxy/watchproxy/watchcache/upstream/fresh"
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

// A read waits for an upstream that is slow for everybody. It would not be answered earlier there.
func TestReadsOfABusyUpstream(t *testing.T) {
	for _, takes := range []time.Duration{900 * time.Millisecond, 1400 * time.Millisecond, 2900 * time.Millisecond} {
		for _, since := range []uint64{0, 100} {
			t.Run(fmt.Sprintf("%v since %d", takes, since), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					f := newFake()
					f.set("a", "1")
					feeds := start(t, f)
					time.Sleep(time.Second) // readiness was asked
					f.locked(func() { f.mu.takes = takes })
					if _, err := feeds.Open(t.Context(), configmaps, object.Want{}, object.JSON, since); err != nil {
						t.Error(err)
					}
				})
			})
		}
	}
}

// Each answer while a feed starts is a sign of life.
func TestReadsOfAFeedThatStartsSlowly(t *testing.T) {
	for _, since := range []uint64{0, 100} {
		synctest.Test(t, func(t *testing.T) {
			f := newFake()
			f.set("a", "1")
			var versions atomic.Int32
			feeds := start(t, roundTrip(func(req *http.Request) (*http.Response, error) {
				if req.URL.Path != "/version" || versions.Add(1) == 1 {
					time.Sleep(900 * time.Millisecond)
				}
				return f.RoundTrip(req)
			}))
			time.Sleep(time.Second) // readiness was asked
			if err := feeds.Names.Serves(t.Context(), configmaps); err != nil {
				t.Fatal(err)
			}
			if _, err := feeds.Open(t.Context(), configmaps, object.Want{}, object.JSON, since); err != nil {
				t.Errorf("since %d: %v", since, err)
			}
		})
	}
}

// A read waits for ten times as long as upstream takes for something else.
func TestReadsOfAStuckFeedOfABusyUpstream(t *testing.T) {
	for takes, waits := range map[time.Duration]time.Duration{
		99 * time.Millisecond: feed.Patience, 200 * time.Millisecond: 2 * time.Second, time.Second: feed.MostPatience,
	} {
		synctest.Test(t, func(t *testing.T) {
			f := newFake()
			f.locked(func() { f.mu.slow = map[string]time.Duration{"probe": time.Hour, "origin": takes} })
			feeds := start(t, f)
			open := func() (time.Duration, error) {
				asked := time.Now()
				_, err := feeds.Open(t.Context(), configmaps, object.Want{}, object.JSON, 0)
				return time.Since(asked), err
			}
			_, _ = open()
			if took, err := open(); !errors.Is(err, watchcache.ErrNoProgress) || took < waits || took > waits+2*takes {
				t.Errorf("others take %v: %v after %v", takes, err, took)
			}
		})
	}
}

// A feed that ends while the proxy measures upstream says why it ended.
func TestReadsOfAFeedThatEndsMeanwhile(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const takes = 100 * time.Millisecond
		f := newFake()
		f.locked(func() {
			f.mu.failing = "probe"
			f.mu.slow = map[string]time.Duration{"probe": feed.Patience*5/4 - takes/2, "origin": takes}
		})
		feeds := start(t, f)
		if err := feeds.Names.Serves(t.Context(), configmaps); err != nil {
			t.Fatal(err)
		}
		time.Sleep(2 * time.Second) // a new feed asks for the version again
		asked := time.Now()
		_, err := feeds.Open(t.Context(), configmaps, object.Want{}, object.JSON, 0)
		if took := time.Since(asked); !apierrors.IsInternalError(err) || took != feed.Patience*5/4+takes {
			t.Errorf("%v after %v", err, took)
		}
	})
}

// A crowd of readers of a stuck feed costs upstream a few requests, even if it refuses them. No reader
// waits longer because others wait, too.
func TestManyReadsOfAStuckFeed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const takes = 5 * time.Millisecond
		f := newFake()
		f.locked(func() { f.mu.slow = map[string]time.Duration{"probe": time.Hour, "origin": takes} })
		feeds := start(t, f)
		if err := feeds.Names.Serves(t.Context(), configmaps); err != nil {
			t.Fatal(err)
		}
		var readers sync.WaitGroup
		for range 300 {
			readers.Go(func() {
				asked := time.Now()
				_, err := feeds.Open(t.Context(), configmaps, object.Want{}, object.JSON, 0)
				if took := time.Since(asked); !errors.Is(err, watchcache.ErrNoProgress) || took > feed.Patience*5/4+3*takes {
					t.Errorf("%v after %v", err, took)
				}
			})
			time.Sleep(time.Millisecond)
		}
		readers.Wait()
		if n := f.count("origin"); n > 4 {
			t.Errorf("%d requests beside the feed's", n)
		}
	})
}

// If a feed cannot begin where its clients resume, it has no more patience than a feed without them.
func TestReadsOfAFeedThatBeginsElsewhere(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		f.locked(func() {
			f.mu.rev, f.mu.compacted = 200, 200
			f.mu.slow = map[string]time.Duration{"list": 1500 * time.Millisecond, "state": time.Hour}
		})
		feeds := start(t, f)
		asked := time.Now()
		_, err := feeds.Open(t.Context(), configmaps, object.Want{}, object.JSON, 100)
		if took := time.Since(asked); !errors.Is(err, watchcache.ErrNoProgress) || took > 5*time.Second {
			t.Errorf("%v after %v", err, took)
		}
	})
}

// A read does not wait for long if upstream answers nothing at all.
func TestReadsOfASilentUpstream(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		feeds := start(t, f)
		open(t, feeds)
		time.Sleep(2 * time.Second) // a new feed asks for the version again
		f.locked(func() { f.mu.takes = time.Hour })
		for range 2 {
			asked := time.Now()
			_, err := feeds.Open(t.Context(), configmaps, object.Want{}, object.Protobuf, 0)
			if !errors.Is(err, watchcache.ErrNoProgress) || time.Since(asked) != feed.MostPatience {
				t.Fatalf("%v after %v", err, time.Since(asked))
			}
		}
	})
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
	for _, since := range []uint64{0, 100} { // the second reads an earlier state
		synctest.Test(t, func(t *testing.T) {
			const takes = feed.MostPatience + time.Second/2
			f := newFake()
			f.set("a", "1")
			feeds := start(t, f)
			for range 8 {
				end, err := feeds.Health.Turn(t.Context())
				if err != nil {
					t.Fatal(err)
				}
				time.AfterFunc(takes, end)
			}
			began := time.Now()
			_, err := feeds.Open(t.Context(), configmaps, object.Want{}, object.JSON, since)
			if took := time.Since(began); err != nil || took < takes || took > takes+time.Second {
				t.Errorf("since %d: %v after %v", since, err, took)
			}
		})
	}
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
		for i := range 200 {
			f.set(string(rune('a'+i%26))+string(rune('a'+i/26)), "1")
		}
		source := openFrom(t, start(t, f))
		asks := func(want error, after time.Duration) {
			t.Helper()
			began := time.Now()
			if _, err := source.Fresh(t.Context(), true); !errors.Is(err, want) || time.Since(began) != after {
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
		if _, err := source.Fresh(ctx, true); !errors.Is(err, watchcache.ErrNoProgress) {
			t.Errorf("%v", err)
		}
	})
}
