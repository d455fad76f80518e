//go:build verify

package cachetest

// Rounds returns how often a random test repeats: gate times in make test, verify times in
// make verify.
func Rounds(_, verify int) int { return verify }
