package proxy

import (
	"context"
	"fmt"
	"net/http"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

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

// errStale is the errForward of a read that the cache would answer if it were up
// to date. Such reads come in crowds, so their number is bounded.
var errStale = fmt.Errorf("%w: the cache is not up to date", errForward)

const (
	// staleReads and staleWatches are how many of them upstream has at a time;
	// staleWait is how long others wait for their turn.
	staleReads   = 64
	staleWatches = 256
	staleWait    = 10 * time.Second
)

// stale holds the places of such reads. A watch keeps its own as long as it is
// open.
type stale struct{ reads, watches chan struct{} }

func newStale(reads, watches int) stale {
	return stale{make(chan struct{}, reads), make(chan struct{}, watches)}
}

// crowded tells whether most places of reads are taken.
func (s stale) crowded() bool { return len(s.reads) > cap(s.reads)/2 }

// admit waits for a place. If there is none, the response tells to come back: by
// then the cache can answer.
func (s stale) admit(ctx context.Context, verb string) (leave func(), refusal *response) {
	places := s.reads
	if verb == "watch" {
		places = s.watches
	}
	ctx, cancel := context.WithTimeout(ctx, staleWait)
	defer cancel()
	select {
	case places <- struct{}{}:
		return sync.OnceFunc(func() { <-places }), nil
	case <-ctx.Done():
		return nil, statusResponse(tooManyRequests(), fromProxy)
	}
}

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
		return watchcache.Snapshot{}, errForward
	}
	objects := r.objects()
	snapshot, age, err := r.feed.Fresh(ctx, objects)
	r.age = age
	if err != nil {
		if objects >= 0 {
			r.timed = &timed{r.feed, objects}
		}
		if _, lost := r.feed.Lost(); lost {
			return snapshot, errLost // as has just been found
		}
		return snapshot, errStale
	}
	if !r.rvGiven || snapshot.ResourceVersion() >= r.rv {
		return snapshot, nil
	}
	if r.timeout {
		return snapshot, errForward // upstream words what a client's own bound makes of it
	}
	if later, err := r.reached(ctx, futureWait-time.Since(began)); err == nil {
		return later, nil
	}
	return snapshot, &tooLargeError{r.rv, snapshot.ResourceVersion()}
}

// objects is how many objects upstream has to look at for the read, or negative if the cache should answer it all the
// same: a watch stays where it was begun, and crowds are for the cache.
func (r *read) objects() int {
	if r.watch || r.crowded {
		return -1
	}
	if r.name != "" || r.filter.Single() {
		return 1
	}
	snapshot, err := r.cache.Snapshot()
	if err != nil {
		return -1
	}
	from, to := r.filter.KeyRange(r.resource)
	n := snapshot.Count(from, to)
	if r.limit > 0 {
		n = int(min(int64(n), r.limit))
	}
	return n
}

// timed is a read that upstream answers instead of a feed.
type timed struct {
	feed    Feed
	objects int
}

// brief tells one that is answered soon enough for lanes: who waits there for long asks twice.
func (t *timed) brief() bool {
	const few = 1000
	return t != nil && t.objects <= few
}

// takes is how long upstream takes for it, 0 if that is not known.
func (t *timed) takes() time.Duration {
	if t == nil {
		return 0
	}
	return t.feed.Takes(t.objects)
}

// reached waits for the cache to reach the read's resourceVersion.
func (r *read) reached(ctx context.Context, wait time.Duration) (watchcache.Snapshot, error) {
	ctx, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	return r.cache.WaitFresh(ctx, r.rv)
}
