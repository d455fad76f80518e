package upstream

import (
	"context"
	"errors"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/util/wait"
)

// health is whether upstream is there to be asked. All feeds share it, so that an upstream that
// is away is asked by one goroutine, and all of them go on when it is back.
//
// A feed whose request or stream fails does not know why. It doubts upstream, which shuts the turns
// until a check that began after that doubt has found a server ready (see [Servers]). A resource
// that fails while upstream is ready is that feed's own matter: the feed backs off.
//
//	no answer, a broken or ended stream, 5xx ─► doubt ─► ready ─────► go on; from the second failure
//	                                              │                   in a row after a back-off
//	                                              └────► not ready ─► go on when it is, all at once
//	any other answer ───────────────────────────────────────────────► upstream is there: back off
//
// A server that vanishes without a word is not noticed at once. client-go's transport pings a
// connection that has been silent for 30 s and gives up after 15 s more, and a consistent read
// gives up after askTimeout.
type health struct {
	turns *turns
	check func() // asks for a check soon

	mu struct {
		sync.Mutex
		doubts uint64        // raised so far
		solved uint64        // those among them that a check has dispelled
		away   bool          // a check has failed since
		since  time.Time     // when upstream came back the last time
		back   chan struct{} // closed when it comes back the next time
	}
}

func newHealth(check func()) *health {
	h := &health{turns: newTurns(openingMax), check: check}
	h.mu.back = make(chan struct{})
	return h
}

// doubt keeps all feeds from upstream until a check that begins from now on has found it ready.
func (h *health) doubt() {
	h.mu.Lock()
	h.mu.doubts++
	h.turns.shut(true)
	h.mu.Unlock()
	h.check()
}

// raised is how many doubts there are that a check which begins now can dispel.
func (h *health) raised() uint64 {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.mu.doubts
}

// checked notes what came of a check that began when some doubts had been raised. It tells whether
// there are others, or still those, so that another check has to follow.
func (h *health) checked(raised uint64, ready bool) (doubted bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	switch {
	case !ready:
		h.mu.away = h.mu.doubts > h.mu.solved
	default:
		h.mu.solved = max(h.mu.solved, raised)
		if h.mu.away {
			h.mu.away, h.mu.since = false, time.Now()
			close(h.mu.back)
			h.mu.back = make(chan struct{})
		}
	}
	doubted = h.mu.doubts > h.mu.solved
	h.turns.shut(doubted)
	return doubted
}

// isAway tells whether upstream was not ready when it was last asked.
func (h *health) isAway() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.mu.away
}

// returning is how long after its return an upstream may refuse what it will allow in a moment: it does
// not know all rights and resources yet.
const returning = 10 * time.Second

// isReturning tells whether upstream has just come back.
func (h *health) isReturning() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return time.Since(h.mu.since) < returning
}

func (h *health) nextReturn() <-chan struct{} {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.mu.back
}

// retry is when somebody who follows upstream goes on after failures in a row.
type retry struct {
	health  *health
	backoff wait.Backoff
	broke   bool // a request or a stream has ended without an answer
	told    bool // upstream has said to read anew
}

// reconnect is how long to leave a resource alone after failures in a row.
var reconnect = wait.Backoff{Duration: 50 * time.Millisecond, Factor: 2, Jitter: 0.5, Steps: 8, Cap: 5 * time.Second}

// steady is how long a stream must have lived for failures before it to be forgotten.
const steady = 5 * time.Second

func newRetry(h *health) retry { return retry{health: h, backoff: reconnect} }

// after waits as long as is called for by an attempt that took some time and ended with err. The first
// stream that breaks is resumed at once, and one whose state upstream says is to be read anew is read
// at once the first time. Whether upstream is there is for the turns to wait for. It is false
// if ctx ends.
func (r *retry) after(ctx context.Context, took time.Duration, err error, do action) bool {
	if took > steady {
		*r = newRetry(r.health)
	}
	back := r.health.nextReturn()
	if doubtful(err) {
		r.health.doubt()
	}
	pause := retryAfter(err)
	switch {
	case do == relist && answered(err) && !r.told:
		r.told = true
	case do == resume && !answered(err) && !r.broke:
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

// answered tells that an error is what upstream said.
func answered(err error) bool {
	_, ok := errors.AsType[*apierrors.StatusError](err)
	return ok
}

// doubtful tells that upstream may be away, or about to: it gave no answer, or one that a server
// gives while it starts or ends.
func doubtful(err error) bool {
	status, ok := errors.AsType[*apierrors.StatusError](err)
	return !ok || status.ErrStatus.Code >= 500
}
