package upstream

import (
	"context"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/watchproxy/watchproxy/watchcache/upstream/client"
	"github.com/watchproxy/watchproxy/watchcache/upstream/servers"
)

// retry is when somebody who follows upstream goes on after failures in a row.
type retry struct {
	health  *servers.Health
	backoff wait.Backoff
	broke   bool // a request or a stream has ended without an answer
	told    bool // upstream has said to read anew
}

// reconnect is how long to leave a resource alone after failures in a row.
var reconnect = wait.Backoff{Duration: 50 * time.Millisecond, Factor: 2, Jitter: 0.5, Steps: 8, Cap: 5 * time.Second}

// steady is how long a stream must have lived for failures before it to be forgotten.
const steady = 5 * time.Second

func newRetry(h *servers.Health) retry { return retry{health: h, backoff: reconnect} }

// after waits as long as is called for by an attempt that took some time and ended with err. The first
// stream that breaks is resumed at once, and one whose state upstream says is to be read anew is read
// at once the first time. Whether upstream is there is for the turns to wait for. It is false
// if ctx ends.
func (r *retry) after(ctx context.Context, took time.Duration, err error, do action) bool {
	if took > steady {
		*r = newRetry(r.health)
	}
	back := r.health.NextReturn()
	if client.Doubtful(err) {
		r.health.Doubt()
	}
	pause := client.RetryAfter(err)
	switch {
	case do == relist && client.Answered(err) && !r.told:
		r.told = true
	case do == resume && !client.Answered(err) && !r.broke:
		r.broke = true
	default:
		pause = max(pause, r.backoff.Step())
	}
	timer := time.NewTimer(pause)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-back: // the failures before were not the resource's
		*r = newRetry(r.health)
	case <-ctx.Done():
	}
	return ctx.Err() == nil
}
