// Package metrics counts requests and the sources of their responses. Clients cannot make up label
// values, because a resource gets labels only after upstream has answered for it.
package metrics

import (
	"runtime/debug"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
	"go.uber.org/zap"

	"github.com/watchproxy/watchproxy/proxy/watch"
)

// Metrics count requests and the sources of their responses.
type Metrics struct {
	known    names
	requests requests
	recent   recent
	watches  watches
	Forwards *prometheus.GaugeVec
	Shared   prometheus.Counter
	Limited  *prometheus.CounterVec
	Refused  *prometheus.CounterVec
	panics   *prometheus.CounterVec
}

// New registers and returns the server's metrics.
func New(r prometheus.Registerer) *Metrics {
	auto := promauto.With(r)
	m := &Metrics{
		requests: newRequests(auto),
		Forwards: auto.NewGaugeVec(prometheus.GaugeOpts{
			Name: "watchproxy_forwards_in_flight",
			Help: "Forwarded requests in flight, by verb. An open watch counts.",
		}, []string{"verb"}),
		Shared: auto.NewCounter(prometheus.CounterOpts{
			Name: "watchproxy_forwards_shared_total",
			Help: "Gets and lists that shared another request's answer: upstream never saw them.",
		}),
	}
	m.known.mu.seen = map[kind]*[3]string{}
	m.watches = newWatches(auto, m.requests.bytes)
	m.watches.lags.mu.of = map[[3]string]*watch.Lag{}
	m.Limited = auto.NewCounterVec(prometheus.CounterOpts{
		Name: "watchproxy_requests_refused_total",
		Help: "Requests refused with 429, by the limit that they exceeded; " +
			"unread: forwarded watches and logs that ended, because their " +
			"clients did not read and there was no room for the unread bytes.",
	}, []string{"limit"})
	m.Refused = auto.NewCounterVec(prometheus.CounterOpts{
		Name: "watchproxy_connections_refused_total",
		Help: "Connections closed or reset before they were served, by reason (limit: too many " +
			"are open, error: accept failed, as without file descriptors, heads: no memory for " +
			"what clients have begun to send, as when a user's open requests hold all of it, " +
			"strangers: too many unknown clients leave answers unread).",
	}, []string{"reason"})
	m.panics = auto.NewCounterVec(prometheus.CounterOpts{
		Name: "watchproxy_panics_total",
		Help: "Panics that ended one request, watch or stream, by place (handler, watch, stream, " +
			"review). The log has the stack.",
	}, []string{"place"})
	for _, place := range []string{InHandler, InWatch, InStream, InReview} {
		m.panics.WithLabelValues(place) // Prometheus misses an increase that creates the series
	}
	r.MustRegister(m.watches.lags)
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
