package proxy

import (
	"context"
	"fmt"
	"net/http"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/watchproxy/watchproxy/watchcache"
)

const (
	// freshWait is kube-apiserver's bound on how long a read waits for its state.
	freshWait = 3 * time.Second
	// streamLag is how long the stream may take to bring a resourceVersion that a
	// client asked for before upstream is asked where it stands: the client may
	// have it from another resource, of which a quiet stream says nothing.
	streamLag = 100 * time.Millisecond
)

// errStale is the errForward of a read that the cache would answer if it were up
// to date. Such reads come in crowds, so their number is bounded.
var errStale = fmt.Errorf("%w: the cache is not up to date", errForward)

// tooLargeError says that upstream has not reached a resourceVersion.
type tooLargeError struct{ asked, current uint64 }

func (e *tooLargeError) Error() string {
	return fmt.Sprintf("Too large resource version: %d, current: %d", e.asked, e.current)
}

// status is what kube-apiserver's cache answers.
func (e *tooLargeError) status() metav1.Status {
	s := failure(http.StatusGatewayTimeout, metav1.StatusReasonTimeout, "Timeout: "+e.Error())
	s.Details = &metav1.StatusDetails{
		RetryAfterSeconds: 1,
		Causes:            []metav1.StatusCause{{Type: metav1.CauseTypeResourceVersionTooLarge, Message: "Too large resource version"}},
	}
	return s
}

// fresh returns the state that the read's resourceVersion asks for: the most
// recent if it is not given, else one that is not older. It fails with errStale,
// or with *tooLargeError if upstream has not got there.
func (r *read) fresh(ctx context.Context) (watchcache.Snapshot, error) {
	wait := freshWait
	if r.timeout {
		wait = min(wait, r.bound)
	}
	ctx, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	if r.rvGiven {
		if snapshot, err := r.reached(ctx, streamLag); err == nil {
			return snapshot, nil
		}
	}
	snapshot, err := r.feed.Fresh(ctx)
	if err != nil {
		return snapshot, errStale
	}
	if !r.rvGiven || snapshot.ResourceVersion() >= r.rv {
		return snapshot, nil
	}
	if r.timeout {
		return snapshot, errForward // upstream words what a client's own bound makes of it
	}
	if later, err := r.reached(ctx, wait); err == nil {
		return later, nil
	}
	return snapshot, &tooLargeError{r.rv, snapshot.ResourceVersion()}
}

// reached waits for the cache to reach the read's resourceVersion.
func (r *read) reached(ctx context.Context, wait time.Duration) (watchcache.Snapshot, error) {
	ctx, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	return r.cache.WaitFresh(ctx, r.rv)
}
