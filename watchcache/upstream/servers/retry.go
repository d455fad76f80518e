package servers

import (
	"context"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/watchproxy/watchproxy/watchcache/upstream/client"
)

// Retry times the attempts of a loop that follows upstream, after failures in a row.
type Retry struct {
	health  *Health
	backoff wait.Backoff
	broke   bool // a request or a stream has ended without an answer
	told    bool // upstream has already asked for a relist
}

// Reconnect is the back-off of one resource after failures in a row.
var Reconnect = wait.Backoff{Duration: 50 * time.Millisecond, Factor: 2, Jitter: 0.5, Steps: 8, Cap: 5 * time.Second}

// Steady is the life of a stream that clears the failures before it.
const Steady = 5 * time.Second

// NewRetry returns a Retry without failures.
func NewRetry(h *Health) Retry { return Retry{health: h, backoff: Reconnect} }

// After waits before the next attempt. took and err are the duration and the end of the last
// attempt; relist tells whether the next attempt reads the state again. The first broken stream is
// resumed at once, and the first relist that upstream asks for starts at once. While upstream is
// away, the turns wait, not After. After returns false if ctx ends.
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
	case <-back: // the earlier failures were upstream's
		*r = NewRetry(r.health)
	case <-ctx.Done():
	}
	return ctx.Err() == nil
}
