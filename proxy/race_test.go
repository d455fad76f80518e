//go:build race

package proxy

// raceEnabled tells that pools forget things at random, so that allocations cannot be counted.
const raceEnabled = true
