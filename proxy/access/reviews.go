package access

import (
	"context"
	"fmt"
	"net/http"
	"path"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/singleflight"
	"k8s.io/apiserver/pkg/util/webhook"

	"github.com/watchproxy/watchproxy/proxy/fair"
)

const (
	// reviewsMax is how many reviews of tokens, and of access, upstream has at a time.
	reviewsMax = 50
	// waitingMax bounds the reviews that wait for upstream, in bytes; waitCost is what one of them
	// takes beside its question.
	waitingMax = 32 << 20
	waitCost   = 4 << 10
	// reviewTimeout bounds a review with all its attempts, its wait for a place included.
	reviewTimeout = 10 * time.Second
	// reviewMax bounds the answer to a review, in bytes.
	reviewMax = 1 << 20
)

// reviews asks upstream questions of one kind. The same question of several clients at a
// time is asked once: all clients come back at once after an outage, and many of them
// are the same service account.
type reviews[V any] struct {
	places  *fair.Queue // upstream
	flights singleflight.Group
	seconds prometheus.Observer
	refused prometheus.Counter
}

func newReviews[V any](resource string, m *metrics) *reviews[V] {
	return &reviews[V]{
		places:  fair.NewQueue(reviewsMax, reviewsMax/2, waitingMax),
		seconds: m.seconds.WithLabelValues(resource), refused: m.refused.WithLabelValues(resource),
	}
}

// ask waits for its turn and for the answer to a question, which takes bytes, and tries
// again where that may help. It goes on if the one who began it leaves.
func (r *reviews[V]) ask(ctx context.Context, of string, k key, bytes int, review func(context.Context) (V, error)) (value V, err error) {
	select {
	case a := <-r.begin(of, k, bytes, review):
		return a.Val.(V), a.Err
	case <-ctx.Done():
		return value, ctx.Err()
	}
}

// begin is ask for somebody who need not wait.
func (r *reviews[V]) begin(of string, k key, bytes int, review func(context.Context) (V, error)) <-chan singleflight.Result {
	return r.flights.DoChan(string(k[:]), func() (any, error) {
		began := time.Now()
		defer func() { r.seconds.Observe(time.Since(began).Seconds()) }()
		ctx, cancel := context.WithTimeout(context.Background(), reviewTimeout)
		defer cancel()
		if err := r.places.Take(ctx, fair.Claim{User: of, Size: 1, Cost: 1, Held: int64(bytes) + waitCost}); err != nil {
			r.refused.Inc()
			return *new(V), fmt.Errorf("wait for one of %d places: %w", reviewsMax, err)
		}
		defer r.places.Give(of, 1)
		return review(ctx)
	})
}

// persist tries again what upstream did not answer.
func persist(ctx context.Context, ask func() error) error {
	return webhook.WithExponentialBackoff(ctx, *retries(), ask, webhook.DefaultShouldRetry)
}

// metrics are those of all reviews.
type metrics struct {
	total    *prometheus.CounterVec
	refused  *prometheus.CounterVec
	seconds  *prometheus.HistogramVec
	hits     *prometheus.CounterVec
	registry prometheus.Registerer
}

func newMetrics(registry prometheus.Registerer) *metrics {
	m := &metrics{
		registry: registry,
		total: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "watchproxy_reviews_total",
			Help: "Reviews of tokens and of access that upstream was asked for, by resource and status code (0: no answer).",
		}, []string{"resource", "code"}),
		refused: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "watchproxy_reviews_refused_total",
			Help: "Reviews that upstream was not asked for, by resource: too many waited, or it was not their turn in time.",
		}, []string{"resource"}),
		seconds: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name:    "watchproxy_review_duration_seconds",
			Help:    "Seconds that reviews took, the wait for their turn included.",
			Buckets: prometheus.ExponentialBuckets(0.001, 4, 7),
		}, []string{"resource"}),
		hits: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "watchproxy_review_cache_hits_total",
			Help: "Questions about tokens and access that needed no review, by resource.",
		}, []string{"resource"}),
	}
	registry.MustRegister(m.total, m.refused, m.seconds, m.hits)
	return m
}

// show registers the size of what is remembered.
func (m *metrics) show(of string, held func() (count, bytes int)) {
	labels := prometheus.Labels{"outcome": of}
	m.registry.MustRegister(
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "watchproxy_review_cache_entries", ConstLabels: labels,
			Help: "Outcomes of reviews that are remembered: token, token-refused or access.",
		}, func() float64 { n, _ := held(); return float64(n) }),
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "watchproxy_review_cache_bytes", ConstLabels: labels,
			Help: "Bytes that they take.",
		}, func() float64 { _, n := held(); return float64(n) }),
	)
}

// counted is the way of reviews upstream.
type counted struct {
	way   http.RoundTripper
	total *prometheus.CounterVec
}

// RoundTrip implements http.RoundTripper. Every request is a review.
func (c *counted) RoundTrip(req *http.Request) (*http.Response, error) {
	code := 0
	resp, err := c.way.RoundTrip(req)
	if err == nil {
		code = resp.StatusCode
		resp.Body = http.MaxBytesReader(nil, resp.Body, reviewMax)
	}
	c.total.WithLabelValues(path.Base(req.URL.Path), strconv.Itoa(code)).Inc()
	return resp, err
}
