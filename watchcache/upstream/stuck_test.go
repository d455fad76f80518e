package upstream

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/watchproxy/watchproxy/watchcache"
	"github.com/watchproxy/watchproxy/watchcache/object"
	"github.com/watchproxy/watchproxy/watchcache/upstream/client"
	"github.com/watchproxy/watchproxy/watchcache/upstream/feed"
	"github.com/watchproxy/watchproxy/watchcache/upstream/fresh"
)

// A read waits as long as upstream gives signs of life, and for a while without them. If upstream takes
// longer for something else, too, the read waits longer: it would not be answered earlier there. An upstream
// that cannot serve the history from which clients resume gets no more patience. The fill goes on.
func TestPatience(t *testing.T) {
	const ms, never = time.Millisecond, time.Hour
	const patience, longest = feed.Patience, feed.MostPatience
	type slow = map[string]time.Duration
	for name, c := range map[string]struct {
		all         time.Duration // what each request takes
		slow        slow
		since       uint64
		lost        bool // the history after since
		failing     string
		least, most time.Duration
		fails       bool
	}{
		"no state":                    {slow: slow{"state": patience * 3 / 2}, least: patience, most: patience, fails: true},
		"no description":              {slow: slow{"probe": patience * 3 / 2}, least: patience, most: patience, fails: true},
		"others take little":          {slow: slow{"probe": never, "origin": 50 * ms}, least: patience, most: patience + 100*ms, fails: true},
		"others take longer":          {slow: slow{"probe": never, "origin": 200 * ms}, least: patience + 400*ms, most: longest - ms, fails: true},
		"others take long":            {slow: slow{"probe": never, "origin": patience}, least: longest, most: longest + 2*patience, fails: true},
		"ends with another error":     {slow: slow{"probe": 1200 * ms, "origin": 100 * ms}, failing: "probe", most: 1400 * ms},
		"busy":                        {all: 900 * ms, most: 10 * patience},
		"very busy":                   {all: 2900 * ms, most: 20 * patience},
		"very busy, from the past":    {all: 2900 * ms, since: 100, most: 30 * patience},
		"silent":                      {all: never, least: longest, most: longest, fails: true},
		"no state and a lost history": {slow: slow{"list": 1500 * ms, "state": never}, since: 100, lost: true, most: 5 * patience, fails: true},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFake()
				f.set("a", "1")
				feeds := start(t, f)
				if err := feeds.shared.Names.Serves(t.Context(), configmaps); err != nil {
					t.Fatal(err)
				}
				time.Sleep(2 * time.Second) // readiness was asked, and a new feed asks for the version again
				f.locked(func() {
					if f.mu.takes, f.mu.slow, f.mu.failing = c.all, c.slow, c.failing; c.lost {
						f.mu.rev, f.mu.compacted = 200, 200
					}
				})
				if c.slow["origin"] > 0 && c.failing == "" { // others are measured
					_, _ = feeds.Open(t.Context(), configmaps, object.Want{}, object.JSON, c.since)
				}
				asked := time.Now()
				_, err := feeds.Open(t.Context(), configmaps, object.Want{}, object.JSON, c.since)
				if took := time.Since(asked); errors.Is(err, watchcache.ErrNoProgress) != c.fails || took < c.least || took > c.most {
					t.Errorf("%v after %v", err, took)
				}
				if c.most == patience {
					openFrom(t, feeds)
					if took := time.Since(asked); took != patience*3/2 || f.count("watch") != 1 {
						t.Errorf("filled after %v, by %d watches", took, f.count("watch"))
					}
				}
			})
		})
	}
}

// A read waits as long as the state arrives.
func TestReadsOfASlowState(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		const pause, pauses = 900 * time.Millisecond, 12
		feeds := start(t, roundTrip(func(req *http.Request) (*http.Response, error) {
			if req.URL.Query().Get("sendInitialEvents") != "true" {
				return f.RoundTrip(req)
			}
			resp, w := piped(req)
			go func() {
				for i := range pauses {
					client.Sleep(req.Context(), pause)
					_, _ = io.WriteString(w, `{"type":"ADDED","object":`+objectJSON(fmt.Sprintf("o%02d", i), fmt.Sprint(i), 90, "1")+"}\n")
				}
				_, _ = io.WriteString(w, `{"type":"BOOKMARK","object":`+bookmarkJSON(101, true)+"}\n")
			}()
			return resp, nil
		}))
		began := time.Now()
		source := openFrom(t, feeds)
		if took, n := time.Since(began), source.Cache().Stats().Objects; took != pause*pauses || n != pauses {
			t.Errorf("%d objects after %v", n, took)
		}
	})
}

// A crowd of readers of a stuck feed costs upstream a few requests, even if it refuses them. No reader
// waits longer because others wait, too.
func TestManyReadsOfAStuckFeed(t *testing.T) {
	for _, version := range []string{"v1.36.3", ""} { // without one, upstream refuses to tell it
		synctest.Test(t, func(t *testing.T) {
			const takes = 5 * time.Millisecond
			f := newFake()
			f.locked(func() {
				f.mu.version = version
				f.mu.slow = map[string]time.Duration{"probe": time.Hour, "origin": takes}
			})
			feeds := start(t, f)
			if err := feeds.shared.Names.Serves(t.Context(), configmaps); err != nil {
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
				end, err := feeds.shared.Health.Turn(t.Context())
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
		if got := testutil.ToFloat64(feeds.shared.Metrics.Relists.WithLabelValues("", "v1", "configmaps", "no-state")); got != 1 {
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

// If upstream has forgotten the history after a state that was read in pages, the feed waits for the
// next stream, even if it is silent for long. Otherwise it would read the pages of a large state for
// ever. A stream that never brings the state is given up, and pages are read again.
func TestStateThatPagesCannotBring(t *testing.T) {
	for _, c := range []struct {
		silent time.Duration
		lists  int
	}{{20 * time.Second, 1}, {time.Hour, 2}} {
		t.Run(c.silent.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFake()
				f.set("a", "1")
				f.slowState(c.silent)
				expired := false
				f.answers(func(r *http.Request) (*http.Response, error) {
					q := r.URL.Query()
					if expired || r.URL.Path != "/api/v1/configmaps" || q.Get("watch") == "" || q.Get("sendInitialEvents") != "" {
						return nil, nil
					}
					expired = true
					return statusReply(http.StatusGone), nil
				})
				feeds := start(t, f)
				_, _ = feeds.Open(t.Context(), configmaps, object.Want{}, object.JSON, 0) // it does not wait so long
				time.Sleep(10 * time.Second)
				f.set("b", "1")
				time.Sleep(5 * time.Minute)
				reached(t, f, open(t, feeds))
				if gone := testutil.ToFloat64(feeds.shared.Metrics.Relists.WithLabelValues("", "v1", "configmaps", "expired")); gone != 1 || f.count("list") != c.lists {
					t.Errorf("%v expired states, %d lists instead of %d", gone, f.count("list"), c.lists)
				}
			})
		})
	}
}

// If proofs fail, a read waits for the next proof for a second only. So it does not fail later than
// at upstream. A read that waits for side watches waits for it. Once a proof has succeeded, all do.
func TestFailingProofs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const takes = 2 * time.Second
		f, source := filledFeed(t, 200)
		waits := false
		asks := func(want error, after time.Duration) {
			t.Helper()
			began := time.Now()
			if _, err := source.Fresh(t.Context(), waits); !errors.Is(err, want) || time.Since(began) != after {
				t.Errorf("%v after %v, want %v after %v", err, time.Since(began), want, after)
			}
		}
		asks(nil, 0)
		probes := func(take time.Duration, failing string) {
			f.delays(take)
			f.locked(func() { f.mu.failing = failing })
		}
		probes(takes, "probe")
		asks(fresh.ErrNotFresh, takes)
		for range 5 {
			asks(watchcache.ErrNoProgress, feed.Patience)
		}
		time.Sleep(time.Minute)
		waits = true
		asks(fresh.ErrNotFresh, takes)
		waits = false
		probes(0, "")
		asks(nil, 0)
		probes(2*feed.Patience, "")
		asks(nil, 2*feed.Patience)
		probes(time.Hour, "")
		ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
		defer cancel()
		if _, err := source.Fresh(ctx, true); !errors.Is(err, watchcache.ErrNoProgress) {
			t.Errorf("%v", err)
		}
	})
}
