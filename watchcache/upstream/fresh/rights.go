package fresh

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/watchproxy/watchproxy/watchcache"
	"github.com/watchproxy/watchproxy/watchcache/upstream/client"
	"github.com/watchproxy/watchproxy/watchcache/upstream/feed"
)

const (
	// RightsLast is how long upstream's answer about a right of the proxy is trusted.
	RightsLast = 10 * time.Second
	// rightsPatience limits the wait of a read for this answer. A get waits for two answers.
	rightsPatience = feed.Patience / 2
)

// right is what upstream has last said about one verb.
type right struct {
	mu struct {
		sync.Mutex
		asked   time.Time     // when the last question began
		answer  chan struct{} // closed when the last question has ended
		known   bool          // upstream has answered before
		refused error         // nil if the verb is allowed
	}
}

var errMayNotGet = errors.New("upstream has not allowed the proxy itself to get such objects")

// newRights returns the rights of a new feed, by verb. To fill its cache, a feed has to list and to
// watch.
func newRights() map[string]*right {
	rights := map[string]*right{"get": {}, "list": {}, "watch": {}}
	for _, r := range rights {
		r.mu.asked, r.mu.answer, r.mu.known = time.Now(), make(chan struct{}), true
		close(r.mu.answer)
	}
	get := rights["get"]
	get.mu.asked, get.mu.refused, get.mu.known = time.Time{}, errMayNotGet, false
	return rights
}

// Allowed returns an error if upstream refuses the proxy itself a verb within the feed's scope. The
// answer is at most RightsLast old, unless upstream does not answer. The feed goes on: as upstream's
// own, watches that are open stay open.
func (f *Feed) Allowed(ctx context.Context, verb string) error {
	if verb == "get" {
		if err := f.Allowed(ctx, "list"); err != nil {
			return err // a narrower scope may be allowed
		}
	}
	r := f.rights[verb]
	if until, answer := r.ask(f, verb); answer != nil {
		patient, cancel := context.WithDeadline(ctx, until)
		defer cancel()
		select {
		case <-answer:
		case <-patient.Done():
		}
		if ctx.Err() != nil {
			return fmt.Errorf("%w: %s: may the proxy %s: %w", watchcache.ErrNotReady, f, verb, ctx.Err())
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.mu.refused
}

// ask asks upstream if its last answer is too old. The question does not end with the reader who has
// caused it. Readers should wait for the answer until the returned time. Without any answer yet, this is
// the end of the question, because they would only wait for upstream elsewhere. If there is no need to
// wait, answer is nil.
func (r *right) ask(f *Feed, verb string) (until time.Time, answer <-chan struct{}) {
	r.mu.Lock()
	defer r.mu.Unlock()
	select {
	case <-r.mu.answer:
		if _, lost := f.Lost(); lost || time.Since(r.mu.asked) < RightsLast {
			return until, nil
		}
		done := make(chan struct{})
		if f.Go(func(ctx context.Context) {
			defer close(done)
			ctx, cancel := context.WithTimeout(ctx, client.ProbeTimeout)
			defer cancel()
			r.note(verb, f.Client.Try(ctx, verb, f.Cache().Resource()))
		}) {
			r.mu.asked, r.mu.answer = time.Now(), done
		}
	default: // upstream has not answered yet
	}
	patience := rightsPatience
	if !r.mu.known {
		patience = client.ProbeTimeout
	}
	return r.mu.asked.Add(patience), r.mu.answer
}

// note records an answer. Other errors than 401 and 403 decide nothing.
func (r *right) note(verb string, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	allowed := err == nil || apierrors.IsNotFound(err)
	if !allowed && !apierrors.IsForbidden(err) && !apierrors.IsUnauthorized(err) {
		return
	}
	r.mu.known = true
	switch {
	case allowed:
		r.mu.refused = nil
	case verb == "get":
		r.mu.refused = errMayNotGet // after err, a feed of a narrower scope would start
	default:
		r.mu.refused = fmt.Errorf("the proxy itself may not %s: %w", verb, err)
	}
}
