package memory

import "testing"

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
	for inUse, want := range map[int64]int{0: 400, mib: 400, 4 * mib: 400, 16 * mib: 100, 32 * mib: 50, 64 * mib: 25, 1024 * mib: 25} {
		if got := percentFor(inUse); got != want {
			t.Errorf("beside %d MiB there may be %d %%, want %d", inUse/mib, got, want)
		}
	}
}
