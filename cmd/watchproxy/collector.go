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
	// gcPercent is the garbage before a collection, in percent of the bytes in use; Go's default is
	// 100. Less costs almost no time: the cache has few pointers, and reads create little garbage.
	gcPercent = 25
	// leastGarbage is the garbage that is always allowed, in bytes. With a small cache, many
	// readers create gcPercent of garbage within milliseconds. In a load test without this minimum,
	// the collector ran a hundred times a second, and 99 % of an unrelated client's gets took up to
	// 7.7 ms. With the minimum they took up to 4.6 ms.
	leastGarbage = 16 << 20
	// The garbage collector's limit is the budget minus a slack: slackShare of the budget, but at
	// least leastSlack, and at most mostSlack of the budget. The limit is soft: the collector uses
	// at most half of the processor time, and otherwise lets the heap exceed it for a moment. On a
	// busy machine, a tenth was not enough for a budget of 160 MiB.
	slackShare = 0.1
	leastSlack = 32 << 20
	mostSlack  = 0.5
)

// collectorLimit returns the garbage collector's limit for a budget. Both numbers are in bytes.
func collectorLimit(budget int64) int64 {
	slack := max(slackShare*float64(budget), leastSlack)
	return budget - int64(min(slack, mostSlack*float64(budget)))
}

// percentFor returns the allowed garbage in percent of inUse. inUse is in bytes.
func percentFor(inUse int64) int {
	return int(max(gcPercent, 100*leastGarbage/max(inUse, 1)))
}

// tune sets the garbage collector's limit for a budget, by default the container's limit. Without a
// budget, a lower GOMEMLIMIT stays. tune returns the limit in bytes, or 0 for none.
func tune(budget *resource.Quantity, container memlimit.Provider, log *zap.Logger) int64 {
	if budget != nil {
		if budget.IsZero() {
			return 0
		}
		limit := collectorLimit(int64(budget.AsApproximateFloat64()))
		debug.SetMemoryLimit(limit)
		return limit
	}
	limit := debug.SetMemoryLimit(-1) // GOMEMLIMIT
	bytes, err := container()
	switch {
	case err == nil:
		limit = min(limit, collectorLimit(int64(bytes)))
		debug.SetMemoryLimit(limit)
		log.Debug("memory limit of the garbage collector", zap.Int64("bytes", limit))
	case limit < math.MaxInt64, errors.Is(err, memlimit.ErrNoLimit),
		errors.Is(err, memlimit.ErrNoCgroup), errors.Is(err, memlimit.ErrCgroupsNotSupported):
	default:
		log.Warn("the container's memory limit cannot be read; set memoryBudget", zap.Error(err))
	}
	if limit == math.MaxInt64 {
		return 0
	}
	return limit
}
