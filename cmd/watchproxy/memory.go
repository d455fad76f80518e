package main

import (
	"errors"
	"math"
	"runtime/debug"

	"github.com/KimMachineGun/automemlimit/memlimit"
	"go.uber.org/zap"
	"k8s.io/apimachinery/pkg/api/resource"
)

const (
	// gcPercent is how much garbage there may be beside what is in use. Most of what is in use is
	// the cache: bytes without pointers. They cost little to mark, and reads make little garbage
	// from them. A quarter of the usual amount costs next to no time.
	gcPercent = 25
	// leastGarbage is how much garbage there may be at least, in bytes. Many readers make a quarter
	// of a small cache within milliseconds. Without this minimum, the collector ran a hundred times
	// a second, and the 99th percentile of a get beside these readers was 7.7 ms. With the minimum
	// it is 4.6 ms.
	leastGarbage = 16 << 20
	// mostPercent applies when next to nothing is in use.
	mostPercent = 400
	// slackShare and leastSlack are the part of the budget above the garbage collector's limit; the
	// larger of the two applies. The limit is a soft one: rather than take more than half of the
	// processor time, the collector lets the heap exceed the limit for a moment. On a busy machine
	// a tenth of a budget of 160 MiB was not enough for that, so there is a minimum. The part is
	// never more than half of the budget.
	slackShare = 0.1
	leastSlack = 32 << 20
	mostSlack  = 0.5
)

// collectorLimit is the garbage collector's limit for a budget; both in bytes.
func collectorLimit(budget int64) int64 {
	slack := max(slackShare*float64(budget), leastSlack)
	return budget - int64(min(slack, mostSlack*float64(budget)))
}

// percentFor is how much garbage there may be beside what is in use, in bytes, in percent of it.
func percentFor(inUse int64) int {
	return int(min(max(gcPercent, 100*leastGarbage/max(inUse, 1)), mostPercent))
}

// tuneMemory sets the garbage collector up for a budget in bytes, by default the container's limit
// or GOMEMLIMIT. It returns the collector's limit, 0 for none.
func tuneMemory(budget *resource.Quantity, log *zap.Logger) int64 {
	if budget != nil {
		if budget.IsZero() {
			return 0
		}
		limit := collectorLimit(int64(budget.AsApproximateFloat64()))
		debug.SetMemoryLimit(limit)
		return limit
	}
	limit, err := memlimit.Set(memlimit.WithRatio(1), memlimit.WithProvider(containerLimit))
	switch {
	case errors.Is(err, memlimit.ErrNoCgroup), errors.Is(err, memlimit.ErrCgroupsNotSupported):
	case err != nil:
		log.Warn("the container's memory limit cannot be read; set GOMEMLIMIT", zap.Error(err))
	default:
		log.Debug("memory limit of the garbage collector", zap.Int64("bytes", limit))
	}
	if limit := debug.SetMemoryLimit(-1); limit != math.MaxInt64 {
		return limit
	}
	return 0
}

// containerLimit is the collector's limit in the container that the process runs in.
func containerLimit() (uint64, error) {
	limit, err := memlimit.FromCgroup()
	if err != nil || limit > math.MaxInt64 {
		return limit, err
	}
	return uint64(collectorLimit(int64(limit))), nil
}
