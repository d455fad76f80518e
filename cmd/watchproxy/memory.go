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
	// gcPercent is the garbage allowed before a collection, in percent of the bytes in use. Go's
	// default is 100. Most bytes in use are the cache, which has few pointers. So marking is cheap,
	// and reads make little garbage. The lower percentage costs next to no time.
	gcPercent = 25
	// leastGarbage is the garbage that is always allowed, in bytes. With a small cache, many
	// readers make gcPercent of garbage within milliseconds. Without this minimum, the collector
	// ran a hundred times a second then, and the 99th percentile of another client's get was 7.7
	// ms. With the minimum it is 4.6 ms.
	leastGarbage = 16 << 20
	// mostPercent is the maximum percentage. It applies when very little is in use.
	mostPercent = 400
	// The garbage collector's limit is below the budget by the larger of slackShare of the budget
	// and leastSlack bytes, but at most by mostSlack of the budget. This slack is needed because
	// the limit is soft: the collector never takes more than half of the processor time, and rather
	// lets the heap exceed the limit for a moment. On a busy machine a tenth of a budget of 160 MiB
	// was not enough for that, so there is a minimum.
	slackShare = 0.1
	leastSlack = 32 << 20
	mostSlack  = 0.5
)

// collectorLimit returns the garbage collector's limit for a budget, both in bytes.
func collectorLimit(budget int64) int64 {
	slack := max(slackShare*float64(budget), leastSlack)
	return budget - int64(min(slack, mostSlack*float64(budget)))
}

// percentFor returns the allowed garbage in percent of inUse, which is in bytes.
func percentFor(inUse int64) int {
	return int(min(max(gcPercent, 100*leastGarbage/max(inUse, 1)), mostPercent))
}

// tuneMemory sets the garbage collector's limit for a budget in bytes. The default budget is the
// container's limit or GOMEMLIMIT. It returns the collector's limit, 0 for none.
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

// containerLimit returns the collector's limit for the memory limit of the process's container.
func containerLimit() (uint64, error) {
	limit, err := memlimit.FromCgroup()
	if err != nil || limit > math.MaxInt64 {
		return limit, err
	}
	return uint64(collectorLimit(int64(limit))), nil
}
