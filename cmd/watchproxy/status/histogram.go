package status

import (
	"maps"
	"math"
	"slices"
)

// histogram counts durations. Two histograms of the same proxy can be subtracted, bucket by bucket.
type histogram struct {
	Count   uint64   `json:"count"`
	Seconds float64  `json:"seconds"` // sum of all durations
	Buckets []bucket `json:"buckets"` // sorted; longer durations are only in Count
}

type bucket struct {
	Seconds float64 `json:"upToSeconds"`
	Count   uint64  `json:"count"`
}

func (m families) histogram(name string, match func(labels) bool) histogram {
	h, buckets := histogram{Buckets: []bucket{}}, map[float64]uint64{}
	for _, metric := range m[name].GetMetric() {
		if !match(labelsOf(metric)) {
			continue
		}
		series := metric.GetHistogram()
		h.Count += series.GetSampleCount()
		h.Seconds += series.GetSampleSum()
		for _, b := range series.GetBucket() {
			buckets[b.GetUpperBound()] += b.GetCumulativeCount()
		}
	}
	for _, bound := range slices.Sorted(maps.Keys(buckets)) {
		if !math.IsInf(bound, 1) { // JSON has no infinity
			h.Buckets = append(h.Buckets, bucket{bound, buckets[bound]})
		}
	}
	return h
}
