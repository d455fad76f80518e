package read

import (
	"context"
	"fmt"
	"net/http"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/watchproxy/watchproxy/proxy/exchange"
	"github.com/watchproxy/watchproxy/proxy/wire"
	"github.com/watchproxy/watchproxy/watchcache"
)

const (
	// futureWait is how long kube-apiserver lets a read wait for a resourceVersion
	// that nobody has reached.
	futureWait = 3 * time.Second
	// freshWait bounds how long a read waits until the cache was shown to be up to
	// date. It is longer than most take, as the alternative is to have upstream
	// answer each of them: when time is short, that makes it shorter.
	freshWait = 10 * time.Second
	// streamLag is how long the stream may take to bring a resourceVersion that a
	// client asked for before upstream is asked where it stands: the client may
	// have it from another resource, of which a quiet stream says nothing.
	streamLag = 100 * time.Millisecond
	// joinWait bounds how long a get waits that joins others: a probe or two take less.
	joinWait = 5 * time.Millisecond
)

// tooLargeError says that upstream has not reached a resourceVersion.
type tooLargeError struct{ asked, current uint64 }

func (e *tooLargeError) Error() string {
	return fmt.Sprintf("Too large resource version: %d, current: %d", e.asked, e.current)
}

// status is what kube-apiserver's cache answers.
func (e *tooLargeError) status() metav1.Status {
	s := exchange.Failure(http.StatusGatewayTimeout, metav1.StatusReasonTimeout, "Timeout: "+e.Error())
	s.Details = &metav1.StatusDetails{
		RetryAfterSeconds: 1,
		Causes:            []metav1.StatusCause{{Type: metav1.CauseTypeResourceVersionTooLarge, Message: "Too large resource version"}},
	}
	return s
}

// fresh returns the state that the read's resourceVersion asks for: the most
// recent if it is not given, else one that is not older. It fails with Stale,
// or with *tooLargeError if upstream has not got there.
func (r *read) fresh(ctx context.Context) (watchcache.Snapshot, error) {
	began := time.Now()
	wait := freshWait
	if r.joins() {
		wait = joinWait
	}
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
	if !r.feed.ServesConsistent() {
		return watchcache.Snapshot{}, Beyond
	}
	if !r.rvGiven {
		if snapshot, age, ok := r.feed.Recent(); ok {
			r.age = age
			return snapshot, nil
		}
	}
	scope := r.scope()
	if scope != nil {
		r.timed = &Timed{Feed: r.feed, Scope: *scope}
		if !r.insists && r.feed.Leaves(*scope) {
			return watchcache.Snapshot{}, Sooner
		}
	}
	snapshot, err := r.feed.Fresh(ctx, scope)
	if err != nil {
		if _, lost := r.feed.Lost(); lost {
			return snapshot, Lost // as has just been found
		}
		return snapshot, Stale
	}
	if !r.rvGiven || snapshot.ResourceVersion() >= r.rv {
		return snapshot, nil
	}
	if r.timeout {
		return snapshot, Beyond // upstream words what a client's own bound makes of it
	}
	if later, err := r.reached(ctx, futureWait-time.Since(began)); err == nil {
		return later, nil
	}
	return snapshot, &tooLargeError{r.rv, snapshot.ResourceVersion()}
}

// scope is what upstream has to look at for a list of the most recent state. It is nil for other reads: a watch would stay
// with upstream for long, a get is forwarded unless it costs nothing, and how long a resourceVersion or a
// timeout takes is the client's to say.
func (r *read) scope() *watchcache.Scope {
	if r.kind() != wire.List || r.rvGiven || r.timeout {
		return nil
	}
	snapshot, err := r.cache.Snapshot()
	if err != nil {
		return nil
	}
	from, to := r.filter.KeyRange(r.resource)
	s := &watchcache.Scope{Objects: snapshot.Count(from, to), Fields: r.fields != nil && !r.fields.Empty()}
	if r.limit > 0 && !r.filter.Selective() {
		s.Objects = int(min(int64(s.Objects), r.limit))
	}
	return s
}

// reached waits for the cache to reach the read's resourceVersion.
func (r *read) reached(ctx context.Context, wait time.Duration) (watchcache.Snapshot, error) {
	ctx, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	return r.cache.WaitFresh(ctx, r.rv)
}
