// Package metrics counts requests and the sources of their responses. Clients cannot make up label
// values, because a resource gets labels only after upstream has answered for it.
package metrics

import (
	"runtime/debug"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"

	"github.com/watchproxy/watchproxy/proxy/watch"
)

// Metrics count requests and the sources of their responses.
type Metrics struct {
	known    names
	requests *prometheus.CounterVec
	seconds  *prometheus.HistogramVec
	bytes    *prometheus.CounterVec
	inFlight *prometheus.GaugeVec
	forwards *prometheus.CounterVec
	recent   recent
	watches  watches
	Forwards *prometheus.GaugeVec
	Shared   prometheus.Counter
	Limited  *prometheus.CounterVec
	Refused  *prometheus.CounterVec
	panics   *prometheus.CounterVec
}

// LatencyBuckets are kube-apiserver's, and three finer ones for responses from the cache.
var LatencyBuckets = []float64{
	0.0005, 0.001, 0.0025, 0.005, 0.025, 0.05, 0.1, 0.2, 0.4, 0.6, 0.8,
	1, 1.25, 1.5, 2, 3, 4, 5, 6, 8, 10, 15, 20, 30, 45, 60,
}

// native adds a native histogram, for servers that scrape it, with a resolution of ten percent.
// With too many buckets it is reset, at most once an hour, and merges buckets in between.
func native(o prometheus.HistogramOpts) prometheus.HistogramOpts {
	o.NativeHistogramBucketFactor, o.NativeHistogramMaxBucketNumber = 1.1, 100
	o.NativeHistogramMinResetDuration = time.Hour
	return o
}

// New registers and returns the server's metrics.
func New(r prometheus.Registerer) *Metrics {
	m := &Metrics{
		requests: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "watchproxy_requests_total",
			Help: "Answered requests, by verb, resource, status code (of the ERROR, " +
				"for a watch of one ERROR; 499 if the client left before the answer; " +
				"5xx and the like for unknown codes) and source (cache, " +
				"upstream: forwarded, proxy: refused here).",
		}, []string{"verb", "group", "version", "resource", "code", "source"}),
		seconds: prometheus.NewHistogramVec(native(prometheus.HistogramOpts{
			Name: "watchproxy_request_duration_seconds",
			Help: "Seconds from a request's header until its answer was written, by verb, " +
				"resource, scope (resource, namespace, cluster) and source. " +
				"For watches, logs, exec, attach and port-forward: until the answer began.",
			Buckets: LatencyBuckets,
		}), []string{"verb", "group", "version", "resource", "scope", "source"}),
		bytes: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "watchproxy_response_bytes_total",
			Help: "Bytes of the bodies of answers. They count when the answer has ended, " +
				"those of watches from the cache when they are written.",
		}, []string{"verb", "group", "version", "resource", "source"}),
		inFlight: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "watchproxy_requests_in_flight",
			Help: "Requests that are being answered, by kind (mutating, readOnly). Watches, " +
				"logs, exec, attach and port-forward count until their answer begins.",
		}, []string{"request_kind"}),
		forwards: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "watchproxy_forwarded_total",
			Help: "Forwarded requests, by verb, resource and reason: not-a-read (writes, " +
				"subresources, other paths), audit (the policy wants the answer's body), " +
				"credentials (upstream has to judge the client), not-cached (the resource), " +
				"parameters, form (Accept), table, most-recent (upstream answers at less cost), " +
				"page, too-old, too-old-watch, too-large, not-up-to-date, " +
				"no-progress (upstream does not help the cache), upstream-lost.",
		}, []string{"verb", "group", "version", "resource", "reason"}),
		Forwards: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "watchproxy_forwards_in_flight",
			Help: "Forwarded requests in flight, by verb. An open watch counts.",
		}, []string{"verb"}),
		Shared: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "watchproxy_forwards_shared_total",
			Help: "Gets and lists that shared another request's answer: upstream never saw them.",
		}),
	}
	m.known.mu.seen = map[kind]*[3]string{}
	m.watches = newWatches(m.bytes)
	m.watches.lags.mu.of = map[[3]string]*watch.Lag{}
	m.Limited = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "watchproxy_requests_refused_total",
		Help: "Requests refused with 429, by the limit that they exceeded; " +
			"unread: forwarded watches and logs that ended, because their " +
			"clients did not read and there was no room for the unread bytes.",
	}, []string{"limit"})
	m.Refused = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "watchproxy_connections_refused_total",
		Help: "Connections closed or reset before they were served, by reason (limit: too many " +
			"are open, error: accept failed, as without file descriptors, heads: no memory for " +
			"what clients have begun to send, as when a user's open requests hold all of it, " +
			"strangers: too many unknown clients leave answers unread).",
	}, []string{"reason"})
	m.panics = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "watchproxy_panics_total",
		Help: "Panics that ended one request, watch or stream, by place (handler, watch, stream, " +
			"review). The log has the stack.",
	}, []string{"place"})
	for _, place := range []string{InHandler, InWatch, InStream, InReview} {
		m.panics.WithLabelValues(place) // Prometheus misses an increase that creates the series
	}
	for _, kind := range []string{mutating, readOnly} {
		m.inFlight.WithLabelValues(kind)
	}
	r.MustRegister(m.requests, m.forwards, m.seconds, m.inFlight, m.Forwards, m.Shared, m.Limited,
		m.Refused, m.panics, m.watches.open, m.watches.ends, m.watches.lags)
	return m
}

// The places where panics are recovered.
const (
	InHandler = "handler"
	InWatch   = "watch"
	InStream  = "stream"
	InReview  = "review"
)

// Panicked counts and logs a panic. The deferred function that recovered it must call Panicked.
func (m *Metrics) Panicked(log *zap.Logger, place string, reason any, fields ...zap.Field) {
	m.panics.WithLabelValues(place).Inc()
	log.Error("panic", append(fields, zap.String("place", place), zap.Any("reason", reason),
		zap.ByteString("stack", debug.Stack()))...)
}

// ConnectionRefused counts a connection that was closed before it was served.
func (m *Metrics) ConnectionRefused(reason string) { m.Refused.WithLabelValues(reason).Inc() }

// Recent returns the kinds of requests forwarded in the last minutes, the most frequent kind first.
func (m *Metrics) Recent() []Forwarded { return m.recent.all(time.Now()) }

// ForwardBegan counts a forwarded request until the returned function is called.
func (m *Metrics) ForwardBegan(verb string) (done func()) {
	gauge := m.Forwards.WithLabelValues(verb)
	gauge.Inc()
	return gauge.Dec
}
