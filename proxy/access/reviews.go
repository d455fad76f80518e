package access

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"path"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/singleflight"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apiserver/pkg/util/webhook"
	"k8s.io/klog/v2"

	"github.com/watchproxy/watchproxy/proxy/fair"
)

const (
	// reviewsMax limits the reviews that are upstream at a time: TokenReviews of unknown tokens,
	// TokenReviews of tokens that were good, and SubjectAccessReviews, each kind by itself.
	reviewsMax = 50
	// waitingMax limits the memory of waiting reviews, in bytes; waitCost is each one's fixed cost.
	waitingMax = 32 << 20
	waitCost   = 4 << 10
	// reviewTimeout limits a review, including its wait and all its attempts. A review that has
	// waited for turnTimeout does not begin, because it might not end in time.
	reviewTimeout = 10 * time.Second
	turnTimeout   = reviewTimeout / 2
	// reviewMax limits the response to a review, in bytes.
	reviewMax = 1 << 20
)

// reviews sends reviews of one kind upstream. Equal requests at the same time share one review.
// After an outage all clients return together, and many of them have the same service account.
type reviews[V any] struct {
	turns   *turns
	flights singleflight.Group
}

func newReviews[V any]() *reviews[V] { return &reviews[V]{turns: newTurns()} }

// turns are the slots upstream, and the memory of waiting reviews, whose clients may have left.
type turns struct{ slots, waiting *fair.Pool }

func newTurns() *turns {
	return &turns{slots: fair.NewPool(reviewsMax, true), waiting: fair.NewPool(waitingMax, true)}
}

type question[V any] interface {
	// known returns the remembered outcome. If it is due, the caller must renew it.
	known() (value V, due, ok bool)
	// review asks upstream, and remembers the outcome.
	review(ctx context.Context) (V, error)
	place() place
}

// place is where a review waits, and who waits for it. Equal requests have the same key.
type place struct {
	key    key
	turns  *turns
	client string
	bytes  int // the size of the request
}

// answer returns a remembered outcome, or waits for a review, which continues if the client leaves.
// Close to the end of its TTL, an outcome is renewed in the background.
func (r *reviews[V]) answer(ctx context.Context, q question[V]) (value V, err error) {
	if found, due, ok := q.known(); ok {
		if due {
			r.begin(q.place(), q.review)
		}
		return found, nil
	}
	select {
	case a := <-r.begin(q.place(), func(ctx context.Context) (V, error) {
		if found, _, ok := q.known(); ok {
			return found, nil // another review has just found it
		}
		return q.review(ctx)
	}):
		return a.Val.(V), a.Err
	case <-ctx.Done():
		return value, ctx.Err()
	}
}

func (r *reviews[V]) begin(
	at place, review func(context.Context) (V, error),
) <-chan singleflight.Result {
	return r.flights.DoChan(string(at.key[:]), func() (any, error) {
		ctx, cancel := context.WithTimeout(context.Background(), reviewTimeout)
		defer cancel()
		if err := at.turns.wait(ctx, at.client, int64(at.bytes)+waitCost); err != nil {
			return *new(V), fmt.Errorf("wait for one of %d slots: %w", reviewsMax, err)
		}
		defer at.turns.slots.Give(at.client, 1)
		return review(ctx)
	})
}

// wait waits for a slot. The review needs size bytes meanwhile.
func (t *turns) wait(ctx context.Context, client string, size int64) error {
	if !t.waiting.Try(client, size) {
		return errCrowded
	}
	defer t.waiting.Give(client, size)
	ctx, cancel := context.WithTimeout(ctx, turnTimeout)
	defer cancel()
	return t.slots.Take(ctx, client, 1)
}

var errCrowded = errors.New("too many reviews wait already")

func persist[T any](ctx context.Context, ask func() (T, error)) (answer T, err error) {
	retries := wait.Backoff{
		Duration: 200 * time.Millisecond,
		Factor:   1.5,
		Jitter:   0.2,
		Steps:    3,
	}
	err = webhook.WithExponentialBackoff(ctx, retries, func() (err error) {
		answer, err = ask()
		return err
	}, webhook.DefaultShouldRetry)
	if err != nil {
		klog.ErrorS(err, "Failed to get a review from upstream")
	}
	return answer, err
}

func newSeconds(registry prometheus.Registerer) *prometheus.HistogramVec {
	seconds := prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name: "watchproxy_review_duration_seconds",
		Help: "Seconds that upstream took for reviews of tokens and of access, " +
			"by resource and status code (0: no answer).",
		Buckets: prometheus.ExponentialBuckets(0.001, 4, 7),

		NativeHistogramBucketFactor:     1.1,
		NativeHistogramMaxBucketNumber:  100,
		NativeHistogramMinResetDuration: time.Hour,
	}, []string{"resource", "code"})
	registry.MustRegister(seconds)
	return seconds
}

type measured struct {
	way     http.RoundTripper
	seconds *prometheus.HistogramVec
}

// RoundTrip implements http.RoundTripper. Every request is a review.
func (m *measured) RoundTrip(req *http.Request) (*http.Response, error) {
	began := time.Now()
	code := 0
	resp, err := m.way.RoundTrip(req)
	if err == nil {
		code = resp.StatusCode
		resp.Body = http.MaxBytesReader(nil, resp.Body, reviewMax)
	}
	seconds := m.seconds.WithLabelValues(path.Base(req.URL.Path), strconv.Itoa(code))
	seconds.Observe(time.Since(began).Seconds())
	return resp, err
}
