package watch

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"time"
)

const (
	// recheckRetry is the time between a review without an answer and the next review.
	recheckRetry = 10 * time.Second
	// recheckGrace is the minimum time for which a watch goes on while no review is answered.
	recheckGrace = 5 * time.Minute
)

// ErrRevoked says that the client of an open watch has lost its right to it.
var ErrRevoked = errors.New("access was revoked")

// recheck repeats the access review of an open watch. Kube-apiserver reviews a watch only when it
// begins. But a watch here shows a cache that was read with the proxy's rights, not the client's.
// If no review is answered, upstream cannot be reached and there are few new events, so the watch
// goes on for recheckGrace.
type recheck struct {
	every     time.Duration // 0 means never
	review    func(context.Context) error
	due       time.Time
	confirmed time.Time
	verdict   chan error     // of the review under way; nil if there is none
	running   sync.WaitGroup // the goroutine of that review
	cancel    func()         // ends the review
	wake      func()         // called when there is a verdict
}

func newRecheck(every time.Duration, review func(context.Context) error) recheck {
	now := time.Now()
	return recheck{every: every, review: review, confirmed: now, due: nextReview(now, every)}
}

// nextReview spreads the reviews of watches that were opened together.
func nextReview(now time.Time, every time.Duration) time.Time {
	const spread = 10
	return now.Add(every - rand.N(every/spread+1))
}

// next returns the time of the next review or the time otherwise, whichever is earlier.
func (c *recheck) next(otherwise time.Time) time.Time {
	if c.every > 0 && c.verdict == nil && c.due.Before(otherwise) {
		return c.due
	}
	return otherwise
}

// goesOn takes the verdict of a review, if there is one, and begins a new review when it is due. It
// does not wait for the new review. If it returns false, the watch has to end.
func (c *recheck) goesOn(ctx context.Context, now time.Time) bool {
	if c.every == 0 {
		return true
	}
	select {
	case verdict := <-c.verdict:
		if !c.end(verdict) {
			return false
		}
	default:
	}
	if c.verdict == nil && !now.Before(c.due) {
		c.begin(ctx)
	}
	return true
}

func (c *recheck) begin(ctx context.Context) {
	verdict := make(chan error, 1)
	c.verdict = verdict
	ctx, c.cancel = context.WithCancel(ctx)
	c.running.Go(func() {
		err := errors.New("panic in a review")
		defer func() {
			_ = recover() // counts as unanswered
			verdict <- err
			c.wake()
		}()
		err = c.review(ctx)
	})
}

// end takes a verdict and tells whether the watch may go on.
func (c *recheck) end(verdict error) bool {
	c.verdict = nil
	c.cancel()
	now := time.Now()
	switch {
	case verdict == nil:
		c.confirmed, c.due = now, nextReview(now, c.every)
		return true
	case errors.Is(verdict, ErrRevoked):
		return false
	}
	c.due = now.Add(min(recheckRetry, c.every))
	return now.Sub(c.confirmed) < max(recheckGrace, c.every)
}

// stop ends the review under way and waits for it.
func (c *recheck) stop() {
	if c.cancel != nil {
		c.cancel()
		c.running.Wait()
	}
}
