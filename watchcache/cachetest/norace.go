//go:build !race

package cachetest

// Race tells that the race detector is on: pools forget things at random, so that allocations cannot be
// counted.
const Race = false
