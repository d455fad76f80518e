package workload

import "slices"

// Quantile returns a percentile of values, or 0 if there are none.
func Quantile(values []float64, percent int) float64 {
	if len(values) == 0 {
		return 0
	}
	return slices.Sorted(slices.Values(values))[len(values)*percent/100]
}
