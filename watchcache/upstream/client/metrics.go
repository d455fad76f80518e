package client

import (
	"strconv"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// Metrics count requests to upstream.
type Metrics struct{ requests *prometheus.CounterVec }

// NewMetrics registers the counter.
func NewMetrics(r prometheus.Registerer) *Metrics {
	m := &Metrics{prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "watchproxy_feed_requests_total",
		Help: "Requests that feeds sent upstream, by verb (discover, probe, list, watch, metadata, definitions, side-watch, ledger) and status code; code 0 means no answer.",
	}, []string{"verb", "code", "group", "version", "resource"})}
	r.MustRegister(m.requests)
	return m
}

func (m *Metrics) request(verb string, gvr schema.GroupVersionResource, code int) {
	m.requests.WithLabelValues(verb, strconv.Itoa(code), gvr.Group, gvr.Version, gvr.Resource).Inc()
}
