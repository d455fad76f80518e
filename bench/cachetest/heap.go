//go:build verify

package cachetest

import "runtime"

// Heap returns the bytes of live objects and of stacks. It takes the least of several collections:
// the second one frees pools, and stacks shrink only during collections.
func Heap() int64 {
	const collections = 8
	least := int64(1) << 62
	for range collections {
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		least = min(least, int64(m.HeapAlloc+m.StackInuse)) //nolint:gosec // a small number
	}
	return least
}
