//go:build race

package cachetest

// Race says whether the race detector is on. It makes pools drop objects at random, so tests cannot
// count allocations.
const Race = true
