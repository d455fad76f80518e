//go:build !verify

package cachetest

// Rounds returns how often a random test repeats: gate times in make test, verify times in
// make verify.
func Rounds(gate, _ int) int { return gate }
