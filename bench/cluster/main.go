package cluster

import (
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"net/http"
	"os"
	"testing"

	"go.uber.org/goleak"
)

var seed uint64

// Seed returns the seed of all random choices in tests. The flag -seed sets the seed to repeat a
// failed run.
func Seed() uint64 { return seed }

// Main is a package's TestMain. Shared fixtures and the fixtures of setUp end after the tests. A
// leaked goroutine fails the package.
func Main(m *testing.M, setUp ...func(testing.TB)) {
	enterPod()
	flag.Uint64Var(&seed, "seed", rand.Uint64(), "what tests draw from")
	// Without this setting each proxy takes a second longer to end.
	if err := os.Setenv("GORACE", "atexit_sleep_ms=0"); err != nil {
		panic(err)
	}
	flag.Parse()
	for _, begin := range setUp {
		begin(lasting{})
	}
	code := m.Run()
	endShared()
	http.DefaultTransport.(*http.Transport).CloseIdleConnections()
	if code == 0 && atEnd.failed {
		code = 1
	}
	if code == 0 {
		// klog, which client-go uses, has a goroutine that never ends.
		if err := goleak.Find(goleak.IgnoreTopFunction("k8s.io/klog/v2.(*flushDaemon).run.func1")); err != nil {
			fmt.Fprintln(os.Stderr, errors.Join(errors.New("goroutines were left"), err))
			code = 1
		}
	}
	if code != 0 {
		fmt.Fprintf(os.Stderr, "drawn with -seed=%d\n", seed)
	}
	os.Exit(code)
}
