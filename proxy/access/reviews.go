package access

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"path"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/singleflight"
)

const (
	// reviewsMax is how many reviews of tokens, and of access, upstream has at a time.
	reviewsMax = 50
	// reviewTimeout bounds a review, its wait for a place included.
	reviewTimeout = 10 * time.Second
	// reviewMax bounds the answer to a review, in bytes.
	reviewMax = 1 << 20
)

// reviews is the way of reviews upstream. The same question of several clients at a
// time is asked once: all clients come back at once after an outage, and many of them
// are the same service account.
type reviews struct {
	way     http.RoundTripper
	tokens  chan struct{} // places
	others  chan struct{} // places of reviews of access: made-up tokens do not take them
	flights singleflight.Group
	total   *prometheus.CounterVec
	seconds *prometheus.HistogramVec
}

func newReviews(registry prometheus.Registerer) *reviews {
	r := &reviews{
		tokens: make(chan struct{}, reviewsMax),
		others: make(chan struct{}, reviewsMax),
		total: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "watchproxy_reviews_total",
			Help: "Reviews of tokens and of access that upstream was asked for, by resource and status code (0: no answer).",
		}, []string{"resource", "code"}),
		seconds: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name:    "watchproxy_review_duration_seconds",
			Help:    "Seconds that reviews took, the wait for their turn included.",
			Buckets: prometheus.ExponentialBuckets(0.001, 4, 7),
		}, []string{"resource"}),
	}
	registry.MustRegister(r.total, r.seconds)
	return r
}

func (r *reviews) wrap(way http.RoundTripper) http.RoundTripper {
	r.way = way
	return r
}

// outcome is an answer that several can read.
type outcome struct {
	http.Response
	body []byte
}

// RoundTrip implements http.RoundTripper. Every request is a review.
func (r *reviews) RoundTrip(req *http.Request) (*http.Response, error) {
	question, err := io.ReadAll(req.Body)
	_ = req.Body.Close() // in memory
	if err != nil {
		return nil, err
	}
	answer := r.flights.DoChan(req.URL.Path+"\x00"+string(question), func() (any, error) { return r.ask(req, question) })
	select {
	case a := <-answer:
		if a.Err != nil {
			return nil, a.Err
		}
		o := a.Val.(*outcome)
		resp := o.Response
		resp.Request, resp.Header, resp.Body = req, o.Header.Clone(), io.NopCloser(bytes.NewReader(o.body))
		return &resp, nil
	case <-req.Context().Done():
		return nil, req.Context().Err()
	}
}

// ask asks upstream. It goes on if the one who began it leaves.
func (r *reviews) ask(req *http.Request, question []byte) (o *outcome, err error) {
	began, resource, code := time.Now(), path.Base(req.URL.Path), 0
	defer func() {
		r.total.WithLabelValues(resource, strconv.Itoa(code)).Inc()
		r.seconds.WithLabelValues(resource).Observe(time.Since(began).Seconds())
	}()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(req.Context()), reviewTimeout)
	defer cancel()
	places := r.others
	if resource == "tokenreviews" {
		places = r.tokens
	}
	select {
	case places <- struct{}{}:
		defer func() { <-places }()
	case <-ctx.Done():
		return nil, fmt.Errorf("wait for one of %d places: %w", reviewsMax, ctx.Err())
	}
	out := req.Clone(ctx)
	out.Body = io.NopCloser(bytes.NewReader(question))
	resp, err := r.way.RoundTrip(out)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close() //nolint:errcheck // read to its end, or too long
	code = resp.StatusCode
	body, err := io.ReadAll(io.LimitReader(resp.Body, reviewMax))
	if err != nil {
		return nil, err
	}
	return &outcome{*resp, body}, nil
}
