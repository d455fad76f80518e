package status

import (
	"fmt"
	"iter"
	"strings"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
)

type families map[string]*dto.MetricFamily

func gather(from prometheus.Gatherer) (families, error) {
	all, err := from.Gather()
	if err != nil {
		return nil, fmt.Errorf("gather metrics: %w", err)
	}
	m := families{}
	for _, f := range all {
		m[f.GetName()] = f
	}
	return m, nil
}

type labels map[string]string

func labelsOf(metric *dto.Metric) labels {
	l := labels{}
	for _, pair := range metric.GetLabel() {
		l[pair.GetName()] = pair.GetValue()
	}
	return l
}

func (m families) series(name string) iter.Seq2[labels, float64] {
	return func(yield func(labels, float64) bool) {
		for _, metric := range m[name].GetMetric() {
			value := metric.GetCounter().GetValue() + metric.GetGauge().GetValue()
			if !yield(labelsOf(metric), value) {
				return
			}
		}
	}
}

func (m families) sum(name string) (sum float64) {
	for _, value := range m.series(name) {
		sum += value
	}
	return sum
}

func (m families) by(name, label string) map[string]float64 {
	sums := map[string]float64{}
	for l, value := range m.series(name) {
		sums[l[label]] += value
	}
	return sums
}

// isRead excludes subresources and requests for an unknown resource, which no cache can answer.
func (l labels) isRead() bool {
	switch l["verb"] {
	case "get", "list", "watch":
		return l["resource"] != "" && !strings.Contains(l["resource"], "/")
	}
	return false
}
