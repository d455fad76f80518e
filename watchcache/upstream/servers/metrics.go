package servers

import "github.com/prometheus/client_golang/prometheus"

// Metrics describe upstream's servers.
type Metrics struct {
	usable    *prometheus.GaugeVec
	failovers prometheus.Counter
}

// NewMetrics registers the metrics.
func NewMetrics(r prometheus.Registerer) *Metrics {
	m := &Metrics{
		usable: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "watchproxy_upstream_server_usable",
			Help: "1 if the upstream server is usable by its last check, else 0.",
		}, []string{"server"}),
		failovers: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "watchproxy_upstream_failovers_total",
			Help: "Failovers to another upstream server because the one before was not usable.",
		}),
	}
	r.MustRegister(m.usable, m.failovers)
	return m
}

func (m *Metrics) note(server string, usable bool) {
	value := 0.0
	if usable {
		value = 1
	}
	m.usable.WithLabelValues(server).Set(value)
}
