package watchcache

import (
	"flag"
	"math/rand/v2"
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var seedFlag = flag.Uint64("seed", 0, "seed of the random tests; 0 takes one from the clock")

// Random returns a test's source of randomness and prints its seed. The flag -seed repeats a failed
// run.
func Random(tb testing.TB) *rand.Rand {
	tb.Helper()
	seed := *seedFlag
	if seed == 0 {
		seed = uint64(time.Now().UnixNano())
	}
	tb.Logf("to repeat: -run '^%s$' -seed %d", tb.Name(), seed)
	return rand.New(rand.NewPCG(seed, 0))
}
