package main

import (
	"math"
	"os"
	"runtime/debug"
	"strconv"
	"testing"

	"github.com/KimMachineGun/automemlimit/memlimit"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"
	"k8s.io/apimachinery/pkg/api/resource"
)

// The collector's limit is below the budget by a tenth, at least by 32 MiB, and at most by half.
func TestCollectorLimit(t *testing.T) {
	const mib = 1 << 20
	for budget, want := range map[int64]int64{
		1 << 40:    1<<40 - 1<<40/10,
		1024 * mib: 1024*mib - 1024*mib/10,
		320 * mib:  288 * mib,
		160 * mib:  128 * mib,
		64 * mib:   32 * mib,
	} {
		if got := collectorLimit(budget); got/mib != want/mib {
			t.Errorf("of %d MiB, the collector keeps to %d MiB, want %d", budget/mib, got/mib, want/mib)
		}
	}
}

// Garbage may grow to a quarter of a large cache, and to 16 MiB with a small cache.
func TestPercentFor(t *testing.T) {
	const mib = 1 << 20
	for inUse, want := range map[int64]int{4 * mib: 400, 16 * mib: 100, 32 * mib: 50, 64 * mib: 25, 1024 * mib: 25} {
		if got := percentFor(inUse); got != want {
			t.Errorf("beside %d MiB there may be %d %%, want %d", inUse/mib, got, want)
		}
	}
}

// The collector's limit is below the container's, whatever GOMEMLIMIT is. A lower GOMEMLIMIT stays as
// it is. A memoryBudget replaces both.
func TestTune(t *testing.T) {
	const mib, off = 1 << 20, math.MaxInt64
	before := debug.SetMemoryLimit(-1)
	defer debug.SetMemoryLimit(before)
	for name, test := range map[string]struct {
		goMemLimit int64
		container  uint64
		err        error
		budget     string
		want       int64 // 0 is no limit
		warns      bool
	}{
		"container":              {goMemLimit: off, container: 320 * mib, want: 288 * mib},
		"GOMEMLIMIT is the same": {goMemLimit: 320 * mib, container: 320 * mib, want: 288 * mib},
		"GOMEMLIMIT is lower":    {goMemLimit: 300 * mib, container: 400 * mib, want: 300 * mib},
		"GOMEMLIMIT only":        {goMemLimit: 300 * mib, err: memlimit.ErrNoLimit, want: 300 * mib},
		"no limit":               {goMemLimit: off, err: memlimit.ErrNoLimit},
		"no cgroup":              {goMemLimit: off, err: memlimit.ErrNoCgroup},
		"no cgroups":             {goMemLimit: off, err: memlimit.ErrCgroupsNotSupported},
		"not readable":           {goMemLimit: off, err: os.ErrPermission, warns: true},
		"not readable, but set":  {goMemLimit: 300 * mib, err: os.ErrPermission, want: 300 * mib},
		"budget":                 {goMemLimit: 100 * mib, container: 200 * mib, budget: "320Mi", want: 288 * mib},
		"budget of 0":            {goMemLimit: off, container: 200 * mib, budget: "0"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Setenv("GOMEMLIMIT", "off")
			if test.goMemLimit != off {
				t.Setenv("GOMEMLIMIT", strconv.FormatInt(test.goMemLimit, 10))
			}
			debug.SetMemoryLimit(test.goMemLimit)
			var budget *resource.Quantity
			if test.budget != "" {
				q := resource.MustParse(test.budget)
				budget = &q
			}
			core, logs := observer.New(zap.WarnLevel)
			got := tune(budget, func() (uint64, error) { return test.container, test.err }, zap.New(core))
			if got != test.want || logs.Len() > 0 != test.warns {
				t.Errorf("the limit is %d, want %d, and the log has %v", got, test.want, logs.All())
			}
			want := test.want
			if want == 0 {
				want = off
			}
			if set := debug.SetMemoryLimit(-1); set != want {
				t.Errorf("the collector keeps to %d, want %d", set, want)
			}
		})
	}
}
