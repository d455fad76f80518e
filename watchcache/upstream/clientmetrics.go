package upstream

import (
	"strconv"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// clientMetrics count what is asked of upstream.
type clientMetrics struct{ requests *prometheus.CounterVec }

// newClientMetrics registers the counter.
func newClientMetrics(r prometheus.Registerer) *clientMetrics {
	m := &clientMetrics{prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "watchproxy_feed_requests_total",
		Help: "Requests that feeds sent upstream, by verb (discover, probe, list, watch, metadata, definitions, side-watch, ledger) and status code; code 0 means no answer.",
	}, []string{"verb", "code", "group", "version", "resource"})}
	r.MustRegister(m.requests)
	return m
}

func (m *clientMetrics) request(verb string, gvr schema.GroupVersionResource, code int) {
	m.requests.WithLabelValues(verb, strconv.Itoa(code), gvr.Group, gvr.Version, gvr.Resource).Inc()
}
