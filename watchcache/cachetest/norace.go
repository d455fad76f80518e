//go:build !race

package cachetest

// Race tells that the race detector is on. Pools then drop objects at random, so allocations cannot
// be counted.
const Race = false
