package client

import "github.com/prometheus/client_golang/prometheus"

// ServerMetrics contains the metrics of upstream's servers.
type ServerMetrics struct {
	usable  *prometheus.GaugeVec
	answers *prometheus.GaugeVec
}

// NewServerMetrics registers the metrics.
func NewServerMetrics(r prometheus.Registerer) *ServerMetrics {
	m := &ServerMetrics{
		usable: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "watchproxy_upstream_server_usable",
			Help: "1 if the upstream server is usable by its last check, else 0. Several servers " +
				"are checked every 3 s, a single one every 10 s, and at once when a request fails.",
		}, []string{"server"}),
		answers: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "watchproxy_upstream_last_answer_timestamp_seconds",
			Help: "Unix time of the last check that the upstream server answered, " +
				"even with a refusal.",
		}, []string{"server"}),
	}
	r.MustRegister(m.usable, m.answers)
	return m
}

func (m *ServerMetrics) note(server string, usable bool) {
	value := 0.0
	if usable {
		value = 1
	}
	m.usable.WithLabelValues(server).Set(value)
}

func (m *ServerMetrics) answered(server string) {
	m.answers.WithLabelValues(server).SetToCurrentTime()
}
