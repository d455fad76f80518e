package main

import (
	"encoding/json"
	"slices"
	"time"
)

// times are durations in the order in which they were measured.
type times []time.Duration

// median returns the median, the lower one of two, or 0 without any times.
func (t times) median() time.Duration {
	if len(t) == 0 {
		return 0
	}
	return slices.Sorted(slices.Values(t))[(len(t)-1)/2]
}

// quantile returns the value at or below which the given part of all times lies, or 0 without any
// times.
func (t times) quantile(part float64) time.Duration {
	if len(t) == 0 {
		return 0
	}
	return slices.Sorted(slices.Values(t))[int(part*float64(len(t)-1))]
}

func (t times) worst() time.Duration {
	if len(t) == 0 {
		return 0
	}
	return slices.Max(t)
}

// MarshalJSON implements json.Marshaler.
func (t times) MarshalJSON() ([]byte, error) {
	all := make([]float64, len(t))
	for i, d := range t {
		all[i] = d.Seconds()
	}
	return json.Marshal(struct {
		Median float64   `json:"medianSeconds"`
		Worst  float64   `json:"worstSeconds"`
		All    []float64 `json:"seconds"`
	}{t.median().Seconds(), t.worst().Seconds(), all})
}
