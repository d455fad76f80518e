package tree

import (
	"flag"
	"math/rand/v2"
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var seed = flag.Uint64("seed", 0, "seed of the random tests; 0 takes one from the clock")

func random(t *testing.T) *rand.Rand {
	t.Helper()
	if *seed == 0 {
		*seed = uint64(time.Now().UnixNano())
	}
	t.Logf("to repeat: -run '^%s$' -seed %d", t.Name(), *seed)
	return rand.New(rand.NewPCG(*seed, 0))
}
