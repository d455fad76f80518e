package main

import (
	"fmt"
	"strings"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
)

// families are metrics by name.
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

// selects tells by its labels whether a metric is wanted.
type selects func(label func(name string) string) bool

func source(is string) selects {
	return func(label func(string) string) bool { return label("source") == is }
}

// tooOld selects requests that were answered with 410, which makes a client begin anew.
func tooOld(label func(string) string) bool { return label("code") == "410" }

// read selects gets, lists and watches of resources that a cache could have: no subresources, and no requests of which it
// is not known what they named.
func read(label func(string) string) bool {
	switch label("verb") {
	case "get", "list", "watch":
		resource := label("resource")
		return resource != "" && !strings.Contains(resource, "/")
	}
	return false
}

// sum adds up the counters and gauges of a name that are wanted. What does not exist counts nothing.
func (m families) sum(name string, wanted ...selects) (sum float64) {
metrics:
	for _, metric := range m[name].GetMetric() {
		label := func(name string) string {
			for _, l := range metric.GetLabel() {
				if l.GetName() == name {
					return l.GetValue()
				}
			}
			return ""
		}
		for _, wants := range wanted {
			if !wants(label) {
				continue metrics
			}
		}
		sum += metric.GetCounter().GetValue() + metric.GetGauge().GetValue()
	}
	return sum
}

// by adds up the counters of a name, or the observations of a histogram, for each value of a label.
func (m families) by(name, label string) map[string]float64 {
	sums := map[string]float64{}
	for _, metric := range m[name].GetMetric() {
		for _, l := range metric.GetLabel() {
			if l.GetName() == label {
				sums[l.GetValue()] += metric.GetCounter().GetValue() + float64(metric.GetHistogram().GetSampleCount())
			}
		}
	}
	return sums
}
