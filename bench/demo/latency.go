package main

import (
	"math"
	"sync/atomic"
	"time"
)

// Buckets lie a 16th of an octave (4.4 %) apart, from a microsecond to 17 minutes.
const (
	bucketsPerOctave = 16
	buckets          = 30 * bucketsPerOctave
)

// latency counts durations. Many goroutines may observe at a time.
type latency struct{ counts [buckets]atomic.Int64 }

func (l *latency) observe(d time.Duration) {
	octaves := math.Log2(float64(max(d, time.Microsecond)) / float64(time.Microsecond))
	l.counts[min(int(octaves*bucketsPerOctave), buckets-1)].Add(1)
}

func (l *latency) snapshot() histogram {
	var h histogram
	for i := range l.counts {
		h[i] = l.counts[i].Load()
	}
	return h
}

// histogram is a latency's counts at a moment, or between two moments.
type histogram [buckets]int64

func (h histogram) minus(earlier histogram) histogram {
	for i := range h {
		h[i] -= earlier[i]
	}
	return h
}

// quantile returns the upper end of the bucket that holds the quantile; 0 if nothing was counted.
func (h histogram) quantile(q float64) time.Duration {
	var all, below int64
	for _, n := range h {
		all += n
	}
	for i, n := range h {
		if below += n; n > 0 && float64(below) >= q*float64(all) {
			return time.Duration(math.Exp2(float64(i+1)/bucketsPerOctave) * float64(time.Microsecond))
		}
	}
	return 0
}
