//go:build !race

package cachetest

// Race reports whether the race detector is on. With the race detector, pools drop objects at
// random, so tests cannot count allocations.
const Race = false
