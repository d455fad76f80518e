//go:build !race

package read

// raceEnabled tells that pools forget things at random, so that allocations cannot be counted.
const raceEnabled = false
