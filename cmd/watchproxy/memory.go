package main

import (
	"errors"
	"math"
	"os"
	"runtime/debug"

	"github.com/KimMachineGun/automemlimit/memlimit"
	"go.uber.org/zap"
	"k8s.io/apimachinery/pkg/api/resource"
)

const (
	// gcPercent is how much garbage there may be beside what is in use. Most of what is in
	// use is the cache: bytes without pointers, which cost little to mark, and which reads make
	// little garbage of. A quarter of the usual amount costs next to no time.
	gcPercent = 25
	// memoryRatio is the part of the container's memory, or of the budget, that the collector
	// keeps to: not all is its own, and it keeps to it more or less.
	memoryRatio = 0.9
)

// tuneMemory sets the garbage collector up for a cache and for a budget in bytes. If that is nil it is the
// container's limit, if there is one, or what GOMEMLIMIT says. It returns what the collector keeps to, 0 for no bound.
func tuneMemory(budget *resource.Quantity, log *zap.Logger) int64 {
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(gcPercent)
	}
	if budget != nil {
		if budget.IsZero() {
			return 0
		}
		limit := int64(memoryRatio * budget.AsApproximateFloat64())
		debug.SetMemoryLimit(limit)
		return limit
	}
	limit, err := memlimit.Set(memlimit.WithRatio(memoryRatio), memlimit.WithProvider(memlimit.FromCgroup))
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
