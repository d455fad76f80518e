package audit

import (
	"strings"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"k8s.io/component-base/metrics/legacyregistry"
)

// Register registers the library's metrics, which have the same names as the apiserver's:
//
//	apiserver_audit_event_total               written or queued events
//	apiserver_audit_error_total               events that were not written, by plugin (log, buffered)
//	apiserver_audit_level_total               responses by the level that the policy selects
//	apiserver_audit_requests_rejected_total   requests answered with 500 in mode blocking-strict
func Register(r prometheus.Registerer) { r.MustRegister(collector{}) }

// collector copies the audit's metrics from the library's registry, which has many others.
type collector struct{}

// Describe implements prometheus.Collector. The collector has no fixed set of series.
func (collector) Describe(chan<- *prometheus.Desc) {}

// Collect implements prometheus.Collector.
func (collector) Collect(out chan<- prometheus.Metric) {
	// After an error, Gather still returns the other families.
	families, _ := legacyregistry.DefaultGatherer.Gather()
	for _, f := range families {
		if !strings.HasPrefix(f.GetName(), "apiserver_audit_") || f.GetType() != dto.MetricType_COUNTER {
			continue
		}
		for _, m := range f.GetMetric() {
			var names, values []string
			for _, label := range m.GetLabel() {
				names, values = append(names, label.GetName()), append(values, label.GetValue())
			}
			desc := prometheus.NewDesc(f.GetName(), f.GetHelp(), names, nil)
			out <- prometheus.MustNewConstMetric(desc, prometheus.CounterValue, m.GetCounter().GetValue(), values...)
		}
	}
}
