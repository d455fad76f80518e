package fresh

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Metrics contains the counters of consistent reads and of the runs that they share.
type Metrics struct {
	runs    *prometheus.CounterVec
	seconds *prometheus.HistogramVec
}

// NewMetrics registers the counters.
func NewMetrics(r prometheus.Registerer) *Metrics {
	m := &Metrics{
		runs: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "watchproxy_freshness_runs_total",
			Help: "Runs that bring a cache up to date for consistent reads, by outcome: " +
				"current (it already was), stream (the watch did it), " +
				"ledger (all later revisions belong to other resources), list (fast-forwarded), " +
				"side-watch, shared (the run before did it), " +
				"failed (readers are forwarded, or ask again).",
		}, []string{"group", "version", "resource", "outcome"}),
		seconds: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "watchproxy_freshness_seconds",
			Help: "Seconds that a consistent read waited until the cache was known to be " +
				"up to date, by the outcome of its freshness run; max-age: a recent state was " +
				"allowed; forwarded: a list did not wait for a side watch.",
			Buckets: prometheus.ExponentialBuckets(0.0005, 2.5, 12),

			NativeHistogramBucketFactor: 1.1, NativeHistogramMaxBucketNumber: 100,
			NativeHistogramMinResetDuration: time.Hour,
		}, []string{"outcome"}),
	}
	r.MustRegister(m.runs, m.seconds)
	return m
}

func (m *Metrics) freshRead(by string, waited time.Duration) {
	m.seconds.WithLabelValues(by).Observe(waited.Seconds())
}
