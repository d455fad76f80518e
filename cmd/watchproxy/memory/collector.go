package memory

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
	// default is 100. Most bytes in use are the cache, which has few pointers. So marking is cheap.
	// Reads create little garbage. Therefore the lower percentage costs almost no time.
	gcPercent = 25
	// leastGarbage is the garbage that is always allowed, in bytes. With a small cache, many
	// readers create gcPercent of garbage within milliseconds. In a load test without this minimum,
	// the collector ran a hundred times a second, and 99 % of an unrelated client's gets took up to
	// 7.7 ms. With the minimum they took up to 4.6 ms.
	leastGarbage = 16 << 20
	// mostPercent is the maximum percentage. It applies if very few bytes are in use.
	mostPercent = 400
	// The garbage collector's limit is the budget minus a slack. The slack is a tenth of the budget
	// (slackShare), but at least 32 MiB (leastSlack), and never more than half of the budget
	// (mostSlack). The slack is needed because the limit is soft: the collector uses at most half
	// of the processor time, and otherwise lets the heap exceed the limit for a moment. On a busy
	// machine, a slack of a tenth was not enough for a budget of 160 MiB. So there is a minimum.
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
	return int(min(max(gcPercent, 100*leastGarbage/max(inUse, 1)), mostPercent))
}

// tune sets the garbage collector's limit for a budget in bytes. The default budget is the
// container's limit or GOMEMLIMIT. tune returns the collector's limit, or 0.
func tune(budget *resource.Quantity, log *zap.Logger) int64 {
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

// containerLimit returns the collector's limit for the memory limit of the container.
func containerLimit() (uint64, error) {
	limit, err := memlimit.FromCgroup()
	if err != nil || limit > math.MaxInt64 {
		return limit, err
	}
	return uint64(collectorLimit(int64(limit))), nil
}
