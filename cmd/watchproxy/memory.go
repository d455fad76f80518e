package main

import (
	"errors"
	"os"
	"runtime/debug"

	"github.com/KimMachineGun/automemlimit/memlimit"
	"go.uber.org/zap"
)

const (
	// gcPercent is how much garbage there may be beside what is in use. Most of what is in
	// use is the cache: bytes without pointers, which cost little to mark, and which reads make
	// little garbage of. A quarter of the usual amount costs next to no time.
	gcPercent = 25
	// memoryRatio is the part of the container's memory that the collector keeps to.
	memoryRatio = 0.9
)

// tuneMemory sets the garbage collector up for a cache, and for the container's limit if
// there is one. What GOGC and GOMEMLIMIT say takes precedence.
func tuneMemory(log *zap.Logger) {
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(gcPercent)
	}
	limit, err := memlimit.Set(memlimit.WithRatio(memoryRatio), memlimit.WithProvider(memlimit.FromCgroup))
	switch {
	case errors.Is(err, memlimit.ErrNoCgroup), errors.Is(err, memlimit.ErrCgroupsNotSupported):
	case err != nil:
		log.Warn("the container's memory limit cannot be read; set GOMEMLIMIT", zap.Error(err))
	default:
		log.Debug("memory limit of the garbage collector", zap.Int64("bytes", limit))
	}
}
