package watch

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/watchproxy/watchproxy/proxy/exchange"
	"github.com/watchproxy/watchproxy/proxy/grants"
)

const (
	// recheckRetry is the time between a failed review and the next review.
	recheckRetry = 10 * time.Second
	// recheckGrace is the minimum time for which a watch continues while all reviews fail.
	recheckGrace = 5 * time.Minute
)

// recheck repeats the access review of an open watch. Kube-apiserver reviews a watch only at its
// start. But the cache was read with the proxy's rights instead of the client's, so the right to a
// watch must be checked again. A review fails without a result if upstream cannot be reached. Few
// new events arrive then, so the watch continues for recheckGrace.
type recheck struct {
	every     time.Duration // the longest time between reviews; 0 means never
	by        Owner
	due       time.Time
	confirmed time.Time
	result    chan error         // receives the result of the current review; nil if there is none
	running   sync.WaitGroup     // the goroutine of the current review
	cancel    context.CancelFunc // ends the current review
	waker     grants.Waker       // is woken when a review has ended
}

func newRecheck(every time.Duration, by Owner, waker grants.Waker) recheck {
	now := time.Now()
	return recheck{
		every:     every,
		by:        by,
		waker:     waker,
		confirmed: now,
		due:       nextReview(now, every),
	}
}

// nextReview spreads the reviews of watches that were opened together, because few reviews run at
// the same time. It leaves at least a tenth of the interval to repeat reviews that fail.
func nextReview(now time.Time, every time.Duration) time.Time {
	return now.Add(every/2 + rand.N(every*2/5+1))
}

// next returns the time of the next review or the time otherwise, whichever is earlier.
func (c *recheck) next(otherwise time.Time) time.Time {
	if c.every > 0 && c.result == nil && c.due.Before(otherwise) {
		return c.due
	}
	return otherwise
}

// goesOn reports whether the watch continues. It reads the result of a review that has ended. If a
// review is due, it starts the review and does not wait for the result.
func (c *recheck) goesOn(ctx context.Context, now time.Time) bool {
	if c.every == 0 {
		return true
	}
	select {
	case result := <-c.result:
		if !c.end(result) {
			return false
		}
	default:
	}
	if c.result == nil && !now.Before(c.due) {
		c.begin(ctx)
	}
	return true
}

func (c *recheck) begin(ctx context.Context) {
	result := make(chan error, 1)
	c.result = result
	ctx, c.cancel = context.WithCancel(ctx)
	c.running.Go(func() {
		result <- c.by.Review(ctx)
		c.waker.Wake()
	})
}

func (c *recheck) end(result error) bool {
	c.result = nil
	c.cancel()
	now := time.Now()
	switch {
	case result == nil:
		c.confirmed, c.due = now, nextReview(now, c.every)
		return true
	case errors.Is(result, exchange.ErrRevoked):
		return false
	}
	c.due = now.Add(min(recheckRetry, c.every))
	return now.Sub(c.confirmed) < max(recheckGrace, c.every)
}

func (c *recheck) stop() {
	if c.cancel != nil {
		c.cancel()
		c.running.Wait()
	}
}
