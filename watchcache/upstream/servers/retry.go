package servers

import (
	"context"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/watchproxy/watchproxy/watchcache/upstream/client"
)

// Retry decides when a loop that follows upstream makes its next attempt after failures.
type Retry struct {
	health  *Health
	backoff wait.Backoff
	broke   bool // the last attempt ended without an answer
	told    bool // upstream has already asked for a relist
}

// Reconnect is the back-off of one resource after failures in a row.
var Reconnect = wait.Backoff{Duration: 50 * time.Millisecond, Factor: 2, Jitter: 0.5, Steps: 8, Cap: 5 * time.Second}

// Steady is the minimum life of a stream that clears the failures before it.
const Steady = 5 * time.Second

// NewRetry returns a Retry without failures.
func NewRetry(h *Health) Retry { return Retry{health: h, backoff: Reconnect} }

// After waits before the next attempt. took is the duration of the last attempt, and err how it
// ended. relist tells whether the next attempt reads the state again. There is no pause before the
// first resume of a broken stream, nor before the first relist that upstream asks for. While
// upstream is down, the turns delay the attempt, not After. After returns false if ctx ends.
func (r *Retry) After(ctx context.Context, took time.Duration, err error, relist bool) bool {
	if took > Steady {
		*r = NewRetry(r.health)
	}
	back := r.health.NextReturn()
	if client.Doubtful(err) {
		r.health.Doubt()
	}
	pause := client.RetryAfter(err)
	switch {
	case relist && client.Answered(err) && !r.told:
		r.told = true
	case !relist && !client.Answered(err) && !r.broke:
		r.broke = true
	default:
		pause = max(pause, r.backoff.Step())
	}
	timer := time.NewTimer(pause)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-back: // upstream caused the earlier failures
		*r = NewRetry(r.health)
	case <-ctx.Done():
	}
	return ctx.Err() == nil
}
