package read

import (
	"context"
	"errors"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/watchproxy/watchproxy/proxy/exchange"
	"github.com/watchproxy/watchproxy/proxy/wire"
	"github.com/watchproxy/watchproxy/watchcache"
)

const (
	// futureWait is the time for which kube-apiserver waits for a future resourceVersion.
	futureWait = 3 * time.Second
	// freshWait limits the wait for an up-to-date cache. Most reads wait less. Upstream could
	// answer each read instead, but under load that would take even longer.
	freshWait = 10 * time.Second
	// streamLag limits the wait for the stream to reach a client's resourceVersion. After that, the
	// feed asks upstream for its current resourceVersion, because the client's may be that of a
	// write to another resource. A stream without events does not reach such a version.
	streamLag = 100 * time.Millisecond
)

// tooLargeError says that the cache has not reached the requested resourceVersion.
type tooLargeError struct{ status metav1.Status }

func (e *tooLargeError) Error() string { return e.status.Message }

// fresh returns a state that is not older than the read's resourceVersion, or the most recent state
// if no resourceVersion is given. It fails with Stale or NoProgress, or with *tooLargeError if
// upstream has not reached that version within futureWait, or does not say so.
func (r *read) fresh(ctx context.Context) (watchcache.Snapshot, error) {
	began, wait := time.Now(), freshWait
	if r.Timeout > 0 && r.Kind != wire.Watch { // upstream ignores the timeout of a watch
		wait = min(wait, r.Timeout)
	}
	ctx, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	if r.RVGiven {
		if snapshot, err := r.reached(ctx, streamLag); err == nil {
			return snapshot, nil
		}
	}
	if !r.feed.ServesConsistent() && !r.Alone { // upstream has no list of some namespaces
		return watchcache.Snapshot{}, MostRecent
	}
	if !r.RVGiven && !r.LimitsAge {
		if snapshot, age, ok := r.feed.Recent(); ok {
			r.age = age
			return snapshot, nil
		}
	}
	if r.mostRecentGet() {
		return watchcache.Snapshot{}, MostRecent
	}
	snapshot, err := r.proven(ctx)
	if err != nil {
		switch _, lost := r.feed.Lost(); {
		case r.RVGiven && r.Timeout == 0 && time.Since(began) >= futureWait &&
			errors.Is(err, watchcache.ErrNoProgress):
			return snapshot, &tooLargeError{exchange.TooLarge(r.RV, r.cache.Stats().Newest)}
		case lost:
			return snapshot, Lost // the freshness run has just detected the loss
		case errors.Is(err, watchcache.ErrNoProgress), r.Kind == wire.Watch:
			return snapshot, NoProgress // a watch would stay at upstream for long
		}
		return snapshot, Stale
	}
	if !r.RVGiven || snapshot.ResourceVersion() >= r.RV {
		return snapshot, nil
	}
	if r.Timeout > 0 && !r.Alone {
		return snapshot, Parameters // upstream writes the error for a client's timeout
	}
	if later, err := r.reached(ctx, futureWait-time.Since(began)); err == nil {
		return later, nil
	}
	return snapshot, &tooLargeError{exchange.TooLarge(r.RV, snapshot.ResourceVersion())}
}

// proven returns a state that is not older than the call. If a resourceVersion is given, upstream
// has to answer within futureWait: the wait for the stream has taken streamLag.
func (r *read) proven(ctx context.Context) (watchcache.Snapshot, error) {
	if r.RVGiven {
		limited, cancel := context.WithTimeout(ctx, futureWait-streamLag)
		defer cancel()
		snapshot, err := r.feed.Fresh(limited, true)
		if err == nil || limited.Err() == nil || errors.Is(err, watchcache.ErrNoProgress) {
			return snapshot, err
		}
	}
	return r.feed.Fresh(ctx, r.waits())
}

func (r *read) reached(ctx context.Context, wait time.Duration) (watchcache.Snapshot, error) {
	ctx, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	return r.cache.WaitFresh(ctx, r.RV)
}
