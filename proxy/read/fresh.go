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
	// futureWait is the time for which kube-apiserver lets a read wait for a future
	// resourceVersion.
	futureWait = 3 * time.Second
	// freshWait bounds the wait for an up-to-date cache. Most reads wait less. Upstream could
	// answer each read instead, but under load it would take even longer.
	freshWait = 10 * time.Second
	// streamLag is the time that the stream gets to reach a client's resourceVersion. After that,
	// the feed asks upstream for its current resourceVersion. The client may have the version from
	// another resource, and a quiet stream does not show versions of other resources.
	streamLag = 100 * time.Millisecond
	// joinWait bounds the wait of a get that joins a freshness run: one or two probes take less.
	joinWait = 5 * time.Millisecond
)

// tooLargeError says that upstream has not reached a resourceVersion.
type tooLargeError struct{ asked, current uint64 }

func (e *tooLargeError) Error() string {
	return fmt.Sprintf("Too large resource version: %d, current: %d", e.asked, e.current)
}

// status is the answer of kube-apiserver's cache.
func (e *tooLargeError) status() metav1.Status {
	s := exchange.Failure(http.StatusGatewayTimeout, metav1.StatusReasonTimeout, "Timeout: "+e.Error())
	s.Details = &metav1.StatusDetails{
		RetryAfterSeconds: 1,
		Causes:            []metav1.StatusCause{{Type: metav1.CauseTypeResourceVersionTooLarge, Message: "Too large resource version"}},
	}
	return s
}

// fresh returns the state that the read's resourceVersion asks for: a state that is not older, or
// the most recent state if no resourceVersion is given. It fails with Stale, or with *tooLargeError
// if upstream has not reached that version.
func (r *read) fresh(ctx context.Context) (watchcache.Snapshot, error) {
	began := time.Now()
	wait := freshWait
	if r.joinsFreshRun() {
		wait = joinWait
	}
	if r.Timeout {
		wait = min(wait, r.Bound)
	}
	ctx, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	if r.RVGiven {
		if snapshot, err := r.reached(ctx, streamLag); err == nil {
			return snapshot, nil
		}
	}
	if !r.feed.ServesConsistent() {
		return watchcache.Snapshot{}, MostRecent
	}
	if !r.RVGiven {
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
			return snapshot, Lost // the freshness run has just noticed it
		}
		return snapshot, Stale
	}
	if !r.RVGiven || snapshot.ResourceVersion() >= r.RV {
		return snapshot, nil
	}
	if r.Timeout {
		return snapshot, Parameters // upstream words the error of a client's timeout
	}
	if later, err := r.reached(ctx, futureWait-time.Since(began)); err == nil {
		return later, nil
	}
	return snapshot, &tooLargeError{r.RV, snapshot.ResourceVersion()}
}

// scope returns what upstream would have to read for a list of the most recent state. It is nil for
// all other reads, for three reasons. A watch would stay upstream for long. A get is forwarded
// unless it costs upstream nothing. A read with a resourceVersion or a timeout has its own limit on
// the wait.
func (r *read) scope() *watchcache.Scope {
	if r.kind() != wire.List || r.RVGiven || r.Timeout {
		return nil
	}
	snapshot, err := r.cache.Snapshot()
	if err != nil {
		return nil
	}
	from, to := r.filter.KeyRange(r.resource)
	s := &watchcache.Scope{Objects: snapshot.Count(from, to), Fields: r.Fields != nil && !r.Fields.Empty()}
	if r.Limit > 0 && !r.filter.Selective() {
		s.Objects = int(min(int64(s.Objects), r.Limit))
	}
	return s
}

// reached waits for the cache to reach the read's resourceVersion.
func (r *read) reached(ctx context.Context, wait time.Duration) (watchcache.Snapshot, error) {
	ctx, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	return r.cache.WaitFresh(ctx, r.RV)
}

// LostGrace is the time for which upstream may be lost without a warning, because a broken stream
// usually comes back.
const LostGrace = time.Second

// allowStale decides on a read from a cache that is out of date. A read of the most recent state
// goes upstream, because upstream may be back.
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
func (r *read) mostRecent() bool { return !r.RVGiven && r.Token == "" }
