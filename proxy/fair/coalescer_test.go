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
	t.Run("one at a time", func(t *testing.T) { testShared(t, 0, 0, 1, 1000/10+2) })
	t.Run("a few at a time", func(t *testing.T) { testShared(t, 10*time.Millisecond, 0, groupMost, 1000*groupPart/10+2) })
	t.Run("at a pace", func(t *testing.T) { testShared(t, 0, 25*time.Millisecond, 1, 1000/25+2) })
	t.Run("some take long", testSlowFlights)
	t.Run("one hangs", testHungFlight)
}

func testShared(t *testing.T, takes, pace time.Duration, atATime, most int64) {
	t.Helper()
	seed := cachetest.Seed(t)
	synctest.Test(t, func(t *testing.T) {
		r := rand.New(rand.NewPCG(seed, 0))
		fs := Coalescer[*answer]{Pace: pace}
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
				got, flew := fs.Share(ctx, "key", takes, func(bool) (*answer, For) {
					if n := flying.Add(1); n > atATime {
						t.Errorf("%d requests at a time", n)
					}
					defer flying.Add(-1)
					sent.Add(1)
					value := written.Load()
					time.Sleep(10 * time.Millisecond)
					if alone {
						return &answer{value}, Leader
					}
					return &answer{value}, All
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
		time.Sleep(pace)
		synctest.Wait()
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
				fs.Share(t.Context(), "key", 10*time.Millisecond, func(bool) (*answer, For) {
					if n := flying.Add(1); n > groupMost {
						t.Errorf("%d requests at a time", n)
					}
					defer flying.Add(-1)
					time.Sleep(takes)
					return &answer{}, All
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
					fs.Share(t.Context(), "key", time.Duration(takes)*time.Millisecond, func(bool) (*answer, For) {
						if i == 0 {
							time.Sleep(time.Minute)
						}
						return &answer{}, All
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
			fs.Share(t.Context(), "key", 0, func(bool) (*answer, For) {
				flown.Add(1)
				time.Sleep(time.Hour)
				return nil, Leader
			})
		})
		synctest.Wait()
		ctx, cancel := context.WithCancel(t.Context())
		var left sync.WaitGroup
		for range 20 {
			left.Go(func() {
				if got, flew := fs.Share(ctx, "key", 0, func(bool) (*answer, For) { flown.Add(1); return nil, Leader }); got != nil || flew {
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

// If a leader cannot fly, another reader leads, also if some leave. A reader without others sends its
// own request.
func TestAnotherReaderLeads(t *testing.T) {
	seed := cachetest.Seed(t)
	synctest.Test(t, func(t *testing.T) {
		r := rand.New(rand.NewPCG(seed, 0))
		var fs Coalescer[*answer]
		var sent atomic.Int64
		ask := func(ctx context.Context, able bool) (got *answer, flew bool) {
			return fs.Share(ctx, "key", 0, func(bool) (*answer, For) {
				if !able {
					return nil, Another
				}
				sent.Add(1)
				time.Sleep(time.Second)
				return &answer{}, All
			})
		}
		if got, flew := ask(t.Context(), false); got != nil || !flew {
			t.Error("an answer without a flight")
		}
		for range 100 {
			var readers sync.WaitGroup
			readers.Go(func() { ask(t.Context(), true) })
			synctest.Wait()
			sent.Store(0)
			ables, leavers := r.IntN(3), r.IntN(5)
			for i := range ables + leavers + r.IntN(10) {
				readers.Go(func() {
					ctx, leave := context.WithCancel(t.Context())
					defer leave()
					able := i < ables
					if i >= ables && i < ables+leavers {
						time.AfterFunc(time.Second, leave) // as the next flight begins
					}
					got, flew := ask(ctx, able)
					switch left := ctx.Err() != nil; {
					case able && got == nil:
						t.Error("an able reader has no answer")
					case !able && got != nil && flew:
						t.Error("an answer of a reader that cannot fly")
					case !able && got == nil && !flew && !left:
						t.Error("no answer, and did not lead")
					}
				})
			}
			readers.Wait()
			if n := sent.Load(); n > 1 || n == 0 && ables > 0 {
				t.Errorf("%d requests with %d able readers", n, ables)
			}
		}
		if len(fs.mu.groups) != 0 {
			t.Errorf("%d keys left", len(fs.mu.groups))
		}
	})
}

// A reader that arrives after the pace does not wait. Neither do the readers of a burst.
func TestPace(t *testing.T) {
	const pace = 10 * time.Millisecond
	type step struct{ pause, wait time.Duration }
	for burst, steps := range [][]step{
		{{0, 0}, {0, pace}, {4 * time.Millisecond, 6 * time.Millisecond}, {2 * pace, 0}, {pace, 0}},
		{{0, 0}, {0, 0}, {0, pace}, {pace / 2, pace / 2}, {2 * pace, 0}, {0, 0}, {0, pace}},
		{{0, 0}, {0, 0}, {0, 0}, {0, pace}, {pace, 0}, {10 * pace, 0}, {0, 0}, {0, 0}, {0, pace}},
	} {
		synctest.Test(t, func(t *testing.T) {
			fs := Coalescer[*answer]{Pace: pace, Burst: burst}
			for i, step := range steps {
				time.Sleep(step.pause)
				began := time.Now()
				if got, flew := fs.Share(t.Context(), "key", 0, func(bool) (*answer, For) { return &answer{}, All }); got == nil || !flew {
					t.Error("no answer")
				}
				if waited := time.Since(began); waited != step.wait {
					t.Errorf("burst %d: reader %d waited for %v instead of %v", burst, i, waited, step.wait)
				}
			}
			time.Sleep(time.Duration(burst+1) * pace)
			synctest.Wait()
			if len(fs.mu.groups) != 0 {
				t.Errorf("%d keys left", len(fs.mu.groups))
			}
		})
	}
}
