//go:build !race

package cluster

// raceEnabled says whether this program was built with the race detector.
const raceEnabled = false
