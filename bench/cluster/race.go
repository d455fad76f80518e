//go:build race

package cluster

// raceEnabled tells whether this program was built with the race detector.
const raceEnabled = true
