package fair

import (
	"context"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/watchproxy/watchproxy/watchcache/cachetest"
)

type answer struct{ value int64 }

func (*answer) LetGo(int) {}

// A shared response belongs to a request that was sent after all its readers arrived. Upstream sees
// one request at a time. If the duration of requests is known, upstream sees a few at a time.
func TestSharedAnswersAreConsistent(t *testing.T) {
	t.Run("one at a time", func(t *testing.T) { testShared(t, 0, 1, 1000/10+2) })
	t.Run("a few at a time", func(t *testing.T) { testShared(t, 10*time.Millisecond, groupMost, 1000*groupPart/10+2) })
	t.Run("some take long", testSlowFlights)
	t.Run("one hangs", testHungFlight)
}

func testShared(t *testing.T, takes time.Duration, atATime, most int64) {
	t.Helper()
	seed := cachetest.Seed(t)
	synctest.Test(t, func(t *testing.T) {
		r := rand.New(rand.NewPCG(seed, 0))
		var fs Coalescer[*answer]
		var written, sent, flying atomic.Int64
		var readers sync.WaitGroup
		const clients = 2000
		for range clients {
			wait, alone := time.Duration(r.IntN(1000))*time.Millisecond, r.IntN(20) == 0
			patience := time.Hour
			if r.IntN(3) == 0 {
				patience = time.Duration(r.IntN(20)) * time.Millisecond
			}
			readers.Go(func() {
				time.Sleep(wait)
				came := time.Now()
				before := written.Add(1) // a write that was just acknowledged
				ctx, cancel := context.WithTimeout(t.Context(), patience)
				defer cancel()
				got, flew := fs.Share(ctx, "key", takes, func(bool) (*answer, bool) {
					if n := flying.Add(1); n > atATime {
						t.Errorf("%d requests at a time", n)
					}
					defer flying.Add(-1)
					sent.Add(1)
					value := written.Load()
					time.Sleep(10 * time.Millisecond)
					if alone {
						return &answer{value}, false
					}
					return &answer{value}, true
				})
				if got == nil {
					if flew {
						t.Error("flew, and has no answer")
					}
					return // the reader sends its own request
				}
				if took := time.Since(came); takes > 0 && !flew && took > takes+takes/2 {
					t.Errorf("an answer took %s, upstream %s", took, takes)
				}
				if got.value < before {
					t.Errorf("answered with %d, came at %d", got.value, before)
				}
			})
		}
		readers.Wait()
		if n := sent.Load(); n > most {
			t.Errorf("%d requests within a second of 10 ms each", n)
		}
		if len(fs.mu.groups) != 0 {
			t.Errorf("%d keys left", len(fs.mu.groups))
		}
	})
}

// If responses take much longer than expected, the number of flights stays bounded.
func testSlowFlights(t *testing.T) {
	seed := cachetest.Seed(t)
	synctest.Test(t, func(t *testing.T) {
		r := rand.New(rand.NewPCG(seed, 0))
		var fs Coalescer[*answer]
		var flying atomic.Int64
		var readers sync.WaitGroup
		for range 600 {
			wait, takes := time.Duration(r.IntN(20_000))*time.Millisecond, 10*time.Millisecond
			if r.IntN(4) == 0 {
				takes = 5 * time.Second
			}
			readers.Go(func() {
				time.Sleep(wait)
				fs.Share(t.Context(), "key", 10*time.Millisecond, func(bool) (*answer, bool) {
					if n := flying.Add(1); n > groupMost {
						t.Errorf("%d requests at a time", n)
					}
					defer flying.Add(-1)
					time.Sleep(takes)
					return &answer{}, true
				})
			})
		}
		readers.Wait()
		if len(fs.mu.groups) > 0 {
			t.Errorf("%d keys left", len(fs.mu.groups))
		}
	})
}

// Once the next flight may begin, no reader waits for a hanging flight, whatever duration is
// expected.
func testHungFlight(t *testing.T) {
	for _, known := range [][]int{{10, 10, 10}, {10, 20, 10}, {0, 10, 10}, {10, 0, 20}, {0, 0, 10}} {
		synctest.Test(t, func(t *testing.T) {
			var fs Coalescer[*answer]
			var readers sync.WaitGroup
			for i, takes := range known {
				readers.Go(func() {
					time.Sleep(time.Duration(i) * 100 * time.Microsecond)
					began := time.Now()
					fs.Share(t.Context(), "key", time.Duration(takes)*time.Millisecond, func(bool) (*answer, bool) {
						if i == 0 {
							time.Sleep(time.Minute)
						}
						return &answer{}, true
					})
					if took := time.Since(began); i > 0 && took > 5*time.Millisecond {
						t.Errorf("known to take %d ms: reader %d waited for %s", known, i, took)
					}
				})
			}
			readers.Wait()
		})
	}
}

// A flight does not wait for clients that have left. If all clients have left, no request is sent.
func TestLeaversAreNotWaitedFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var fs Coalescer[*answer]
		var flown atomic.Int64
		var all sync.WaitGroup
		all.Go(func() {
			fs.Share(t.Context(), "key", 0, func(bool) (*answer, bool) {
				flown.Add(1)
				time.Sleep(time.Hour)
				return nil, false
			})
		})
		synctest.Wait()
		ctx, cancel := context.WithCancel(t.Context())
		var left sync.WaitGroup
		for range 20 {
			left.Go(func() {
				if got, flew := fs.Share(ctx, "key", 0, func(bool) (*answer, bool) { flown.Add(1); return nil, false }); got != nil || flew {
					t.Error("a reader that left has flown")
				}
			})
		}
		synctest.Wait()
		cancel()
		left.Wait() // within the hour
		all.Wait()
		if n := flown.Load(); n != 1 || len(fs.mu.groups) != 0 {
			t.Errorf("%d flights, %d keys left", n, len(fs.mu.groups))
		}
	})
}
