package upstream

import "github.com/prometheus/client_golang/prometheus"

// serverMetrics are about the servers of upstream.
type serverMetrics struct {
	usable    *prometheus.GaugeVec
	failovers prometheus.Counter
}

// newServerMetrics registers the metrics.
func newServerMetrics(r prometheus.Registerer) *serverMetrics {
	m := &serverMetrics{
		usable: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "watchproxy_upstream_server_usable",
			Help: "1 if the upstream server may be asked by its last check, else 0.",
		}, []string{"server"}),
		failovers: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "watchproxy_upstream_failovers_total",
			Help: "Times that another upstream server was asked from then on, as the one before was not fit to be.",
		}),
	}
	r.MustRegister(m.usable, m.failovers)
	return m
}

func (m *serverMetrics) note(server string, usable bool) {
	value := 0.0
	if usable {
		value = 1
	}
	m.usable.WithLabelValues(server).Set(value)
}
