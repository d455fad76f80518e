package cachetest

import (
	"fmt"
	"os"
	"strconv"
	"testing"
)

// seedVariable names the environment variable that sets the seed.
const seedVariable = "WATCHPROXY_SEED"

// DefaultSeed returns the seed in WATCHPROXY_SEED, or 1. So each run makes the same random choices.
// make verify draws a seed for each of its runs, and a failed run is repeated with the seed that it
// printed.
func DefaultSeed() uint64 {
	text, ok := os.LookupEnv(seedVariable)
	if !ok {
		return 1
	}
	seed, err := strconv.ParseUint(text, 10, 64)
	if err != nil {
		panic(fmt.Sprintf("%s=%q is not a whole number", seedVariable, text))
	}
	return seed
}

// Seed returns DefaultSeed, and logs it.
func Seed(tb testing.TB) uint64 {
	tb.Helper()
	seed := DefaultSeed()
	tb.Logf("%s=%d", seedVariable, seed)
	return seed
}
