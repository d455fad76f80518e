package tree

import (
	"math/rand/v2"
	"testing"
)

// Seed is the seed of all random tests.
var Seed uint64

func random(t *testing.T) *rand.Rand {
	t.Helper()
	t.Logf("WATCHPROXY_SEED=%d", Seed)
	return rand.New(rand.NewPCG(Seed, 0))
}
