package watch

import (
	"context"
	"errors"
	"math/rand/v2"
	"time"
)

const (
	// recheckRetry is when a review that nobody could answer is tried again,
	// recheckGrace how long a watch goes on without one.
	recheckRetry = 10 * time.Second
	recheckGrace = 5 * time.Minute
)

// ErrRevoked says that the client of an open watch may not go on.
var ErrRevoked = errors.New("access was revoked")

// recheck has the right to an open watch confirmed from time to time. Kube-apiserver
// leaves it at the first time; but our watches show what a cache holds that was read
// with other rights than the client's. While nobody can be asked, upstream is away
// and there is little new to be seen: the watch goes on for a grace.
type recheck struct {
	every     time.Duration // 0 for never
	review    func(context.Context) error
	due       time.Time
	confirmed time.Time
	verdict   chan error      // of the review under way; nil if there is none
	cancel    func()          // ends that
	over      <-chan struct{} // closed when the goroutine of the last one has ended; nil if there was none
	wake      func()          // called when there is a verdict
}

func newRecheck(every time.Duration, review func(context.Context) error) recheck {
	now := time.Now()
	c := recheck{every: every, review: review, confirmed: now}
	c.schedule(now)
	return c
}

// schedule spreads the reviews of watches that were opened together.
func (c *recheck) schedule(now time.Time) {
	const spread = 10
	c.due = now.Add(c.every - rand.N(c.every/spread+1))
}

// next is when something has to be done, if there is anything.
func (c *recheck) next(otherwise time.Time) time.Time {
	if c.every > 0 && c.verdict == nil && c.due.Before(otherwise) {
		return c.due
	}
	return otherwise
}

// goesOn takes the verdict of a review, if there is one, and begins the next one when it
// is due. The watch does not wait for it, but has to end if goesOn is false.
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
	over := make(chan struct{})
	c.over = over
	go func() {
		defer close(over)
		err := errors.New("panic in a review")
		defer func() {
			_ = recover() // the error says that nobody could tell
			verdict <- err
			c.wake()
		}()
		err = c.review(ctx)
	}()
}

// end tells whether the watch may go on.
func (c *recheck) end(verdict error) bool {
	c.verdict = nil
	c.cancel()
	now := time.Now()
	switch {
	case verdict == nil:
		c.confirmed = now
		c.schedule(now)
		return true
	case errors.Is(verdict, ErrRevoked):
		return false
	}
	c.due = now.Add(min(recheckRetry, c.every))
	return now.Sub(c.confirmed) < max(recheckGrace, c.every)
}

// stop ends the review under way and waits for it.
func (c *recheck) stop() {
	if c.over == nil {
		return
	}
	c.cancel()
	<-c.over
	c.verdict = nil
}
