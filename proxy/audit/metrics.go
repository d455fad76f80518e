package audit

import (
	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/component-base/metrics/legacyregistry"
)

// These metrics of the library tell that events are missing. They have the names of the
// apiserver's:
//
//	apiserver_audit_error_total               events that were not written, by plugin (log)
//	apiserver_audit_requests_rejected_total   requests answered with 500 in mode blocking-strict
const (
	errorTotal    = "apiserver_audit_error_total"
	rejectedTotal = "apiserver_audit_requests_rejected_total"
)

// Register registers the library's metrics of missing events.
func Register(r prometheus.Registerer) { r.MustRegister(collector{}) }

// collector copies the audit's metrics from the library's registry, which has many others.
type collector struct{}

// Describe implements prometheus.Collector. The collector has no fixed set of series.
func (collector) Describe(chan<- *prometheus.Desc) {}

func (collector) Collect(out chan<- prometheus.Metric) {
	// After an error, Gather still returns the other families.
	families, _ := legacyregistry.DefaultGatherer.Gather()
	for _, f := range families {
		if f.GetName() != errorTotal && f.GetName() != rejectedTotal {
			continue
		}
		for _, m := range f.GetMetric() {
			var names, values []string
			for _, label := range m.GetLabel() {
				names, values = append(names, label.GetName()), append(values, label.GetValue())
			}
			desc := prometheus.NewDesc(f.GetName(), f.GetHelp(), names, nil)
			out <- prometheus.MustNewConstMetric(desc, prometheus.CounterValue,
				m.GetCounter().GetValue(), values...)
		}
	}
}
