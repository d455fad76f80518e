package fair

import (
	"context"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/watchproxy/watchproxy/bench/cachetest"
)

type answer struct{ value int64 }

// share returns the answer of a flight. If the caller leads it, fly sends the request. all says that its
// answer is for all readers.
func (fs *Coalescer[A]) share(ctx context.Context, key string, fly func(crowd bool) (_ A, all bool)) (_ A, flew bool) {
	answer, flight := fs.Join(ctx, key)
	if flight == nil {
		return answer, false
	}
	answer, all := fly(flight.Crowded())
	if all {
		flight.Land(answer)
	} else {
		flight.Land(*new(A))
	}
	return answer, true
}

// A shared response belongs to a request that was sent after all its readers arrived. Upstream sees
// one request at a time.
func TestSharedAnswersAreConsistent(t *testing.T) {
	const most = 1000/10 + 2
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
				before := written.Add(1) // a write that was just acknowledged
				ctx, cancel := context.WithTimeout(t.Context(), patience)
				defer cancel()
				got, flew := fs.share(ctx, "key", func(bool) (*answer, bool) {
					if n := flying.Add(1); n > 1 {
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
				if got.value < before {
					t.Errorf("answered with %d, came at %d", got.value, before)
				}
			})
		}
		readers.Wait()
		synctest.Wait()
		if n := sent.Load(); n > most {
			t.Errorf("%d requests within a second of 10 ms each", n)
		}
		if len(fs.mu.next) != 0 {
			t.Errorf("%d keys left", len(fs.mu.next))
		}
	})
}

// A reader that waits for a hanging flight sends its own request after lateAfter. One whose flight has begun
// waits for the answer.
func TestHungFlight(t *testing.T) {
	for takes, want := range map[time.Duration]time.Duration{time.Hour: lateAfter, lateAfter * 3 / 4: lateAfter * 3 / 2} {
		synctest.Test(t, func(t *testing.T) {
			var fs Coalescer[*answer]
			var readers sync.WaitGroup
			for range 3 {
				readers.Go(func() {
					began := time.Now()
					got, flew := fs.share(t.Context(), "key", func(bool) (*answer, bool) {
						time.Sleep(takes)
						return &answer{}, true
					})
					took, shares := time.Since(began), want > lateAfter
					if !flew && (took != want || shares != (got != nil)) {
						t.Errorf("a reader got %v after %s, want %s", got, took, want)
					}
				})
				synctest.Wait()
			}
			readers.Wait()
			if len(fs.mu.next) != 0 {
				t.Errorf("%d keys left", len(fs.mu.next))
			}
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
			fs.share(t.Context(), "key", func(bool) (*answer, bool) {
				flown.Add(1)
				time.Sleep(time.Minute)
				return nil, false
			})
		})
		synctest.Wait()
		ctx, cancel := context.WithCancel(t.Context())
		var left sync.WaitGroup
		for range 20 {
			left.Go(func() {
				if got, flew := fs.share(ctx, "key", func(bool) (*answer, bool) { flown.Add(1); return nil, false }); got != nil || flew {
					t.Error("a reader that left has flown")
				}
			})
		}
		synctest.Wait()
		cancel()
		left.Wait() // within the minute
		all.Wait()
		if n := flown.Load(); n != 1 || len(fs.mu.next) != 0 {
			t.Errorf("%d flights, %d keys left", n, len(fs.mu.next))
		}
	})
}
