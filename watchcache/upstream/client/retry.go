package client

import (
	"context"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/util/wait"
)

// Retry decides when a feed's loop makes its next attempt after failures.
type Retry struct {
	health  *Health
	backoff wait.Backoff
	again   bool // an earlier attempt has failed
	expired bool // an earlier attempt got 410
}

// Reconnect is the back-off of a resource after successive failures.
var Reconnect = wait.Backoff{
	Duration: 50 * time.Millisecond, Factor: 2, Jitter: 0.5, Steps: 8, Cap: 5 * time.Second,
}

// Steady is how long a stream must last to clear the earlier failures.
const Steady = 5 * time.Second

// NewRetry returns a Retry without failures.
func NewRetry(h *Health) Retry { return Retry{health: h, backoff: Reconnect} }

// After waits before the next attempt. took and err are those of the last attempt. The first
// attempt after a failure, and the first after a 410, have no pause. It returns false if ctx ends.
func (r *Retry) After(ctx context.Context, took time.Duration, err error) bool {
	if took > Steady {
		*r = NewRetry(r.health)
	}
	back := r.health.NextReturn()
	if Doubtful(err) {
		r.health.Doubt()
	}
	pause := RetryAfter(err)
	switch {
	case apierrors.IsResourceExpired(err) && !r.expired:
		r.expired = true
	case !r.again:
		r.again = true
	default:
		pause = max(pause, r.backoff.Step())
	}
	if pause == 0 {
		return ctx.Err() == nil
	}
	select {
	case <-time.After(pause):
	case <-back: // upstream was down, which explains the failures
		*r = NewRetry(r.health)
	case <-ctx.Done():
	}
	return ctx.Err() == nil
}
