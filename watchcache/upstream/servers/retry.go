package servers

import (
	"context"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/watchproxy/watchproxy/watchcache/upstream/client"
)

// Action is what follows a failure.
type Action int

// What follows a failure.
const (
	Resume Action = iota // try again what was interrupted
	Relist               // read the state again
	GiveUp
)

// Retry is when somebody who follows upstream goes on after failures in a row.
type Retry struct {
	health  *Health
	backoff wait.Backoff
	broke   bool // a request or a stream has ended without an answer
	told    bool // upstream has said to read anew
}

// Reconnect is how long to leave a resource alone after failures in a row.
var Reconnect = wait.Backoff{Duration: 50 * time.Millisecond, Factor: 2, Jitter: 0.5, Steps: 8, Cap: 5 * time.Second}

// Steady is how long a stream must have lived for failures before it to be forgotten.
const Steady = 5 * time.Second

// NewRetry begins with no failure.
func NewRetry(h *Health) Retry { return Retry{health: h, backoff: Reconnect} }

// After waits as long as is called for by an attempt that took some time and ended with err. The first
// stream that breaks is resumed at once, and one whose state upstream says is to be read anew is read
// at once the first time. Whether upstream is there is for the turns to wait for. It is false
// if ctx ends.
func (r *Retry) After(ctx context.Context, took time.Duration, err error, do Action) bool {
	if took > Steady {
		*r = NewRetry(r.health)
	}
	back := r.health.NextReturn()
	if client.Doubtful(err) {
		r.health.Doubt()
	}
	pause := client.RetryAfter(err)
	switch {
	case do == Relist && client.Answered(err) && !r.told:
		r.told = true
	case do == Resume && !client.Answered(err) && !r.broke:
		r.broke = true
	default:
		pause = max(pause, r.backoff.Step())
	}
	timer := time.NewTimer(pause)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-back: // the failures before were not the resource's
		*r = NewRetry(r.health)
	case <-ctx.Done():
	}
	return ctx.Err() == nil
}
