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

// Seed is what tests draw from. The flag -seed gives back that of a run which has failed.
func Seed() uint64 { return seed }

// Main is a package's TestMain. What is set up before the tests, and what they share, ends after them. A goroutine that is left
// fails the package.
func Main(m *testing.M, setUp ...func(testing.TB)) {
	flag.Uint64Var(&seed, "seed", rand.Uint64(), "what tests draw from")
	// Or each end of a proxy takes a second longer.
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
		// klog, which client-go brings along, flushes for as long as the process lives.
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
