package read

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/watchproxy/watchproxy/proxy/exchange"
	"github.com/watchproxy/watchproxy/proxy/wire"
	"github.com/watchproxy/watchproxy/watchcache"
)

const (
	// futureWait is how long kube-apiserver lets a read wait for a future resourceVersion.
	futureWait = 3 * time.Second
	// freshWait bounds the wait for an up-to-date cache. Most reads wait less. The alternative is to
	// have upstream answer each read: under load, that takes longer still.
	freshWait = 10 * time.Second
	// streamLag is how long the stream may take to reach a client's resourceVersion before the feed
	// asks upstream for its own. The client may have the version from another resource, and a quiet
	// stream tells nothing about those.
	streamLag = 100 * time.Millisecond
	// joinWait bounds the wait of a get that joins a freshness run: one or two probes take less.
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

// fresh returns the state that the read's resourceVersion asks for: the most recent one if none is
// given, else one that is not older. It fails with Stale, or with *tooLargeError if upstream has
// not reached that version.
func (r *read) fresh(ctx context.Context) (watchcache.Snapshot, error) {
	began := time.Now()
	wait := freshWait
	if r.joinsFreshRun() {
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
			return snapshot, Lost // the run has just found it
		}
		return snapshot, Stale
	}
	if !r.rvGiven || snapshot.ResourceVersion() >= r.rv {
		return snapshot, nil
	}
	if r.timeout {
		return snapshot, Beyond // upstream words the error of a client's timeout
	}
	if later, err := r.reached(ctx, futureWait-time.Since(began)); err == nil {
		return later, nil
	}
	return snapshot, &tooLargeError{r.rv, snapshot.ResourceVersion()}
}

// scope is what upstream reads for a list of the most recent state. It is nil for other reads. A
// watch would stay upstream for long, a get is forwarded unless it costs nothing, and a
// resourceVersion or a timeout sets its own wait.
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

// LostGrace is how long upstream may be away without a warning, as broken streams come back.
const LostGrace = time.Second

// allowStale decides on a read from a cache that is not kept up to date. Reads of the most recent
// state go upstream, in case it is back.
func (rd *Reader) allowStale(r *read) error {
	age, lost := r.feed.Lost()
	switch {
	case !lost || age < LostGrace:
		return nil
	case rd.Options().FailOnLoss, rd.Options().MaxStaleness > 0 && age > rd.Options().MaxStaleness, r.mostRecent():
		return Lost
	}
	text := fmt.Sprintf("watchproxy has not reached the apiserver for %s: this may be out of date", age.Truncate(time.Second))
	r.warnings = append(slices.Clip(r.warnings), fmt.Sprintf("299 - %q", text))
	return nil
}

// mostRecent tells whether a read asks for the most recent state.
func (r *read) mostRecent() bool { return !r.rvGiven && r.token == "" }
