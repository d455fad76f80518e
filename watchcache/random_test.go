package watchcache

import (
	"math/rand/v2"
	"testing"
)

// Seed is the seed of all random tests.
var Seed uint64

// Pick returns one of several values.
func Pick[T any](r *rand.Rand, from ...T) T { return from[r.IntN(len(from))] }

// Random returns a test's source of randomness, and logs its seed.
func Random(tb testing.TB) *rand.Rand {
	tb.Helper()
	tb.Logf("WATCHPROXY_SEED=%d", Seed)
	return rand.New(rand.NewPCG(Seed, 0))
}
