package cluster

import (
	"errors"
	"flag"
	"fmt"
	"net/http"
	"os"
	"runtime/debug"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/watchproxy/watchproxy/bench/cachetest"
)

var seed uint64

// Seed returns the seed of all random choices in tests. The flag -seed sets the seed to repeat a
// failed run.
func Seed() uint64 { return seed }

// Main is a package's TestMain. Shared fixtures and the fixtures of setUp end after the tests. A
// leaked goroutine fails the package.
func Main(m *testing.M, setUp ...func(testing.TB)) {
	enterPod()
	flag.Uint64Var(&seed, "seed", cachetest.DefaultSeed(), "what tests draw from")
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
		if err := leaked(); err != nil {
			fmt.Fprintln(os.Stderr, errors.Join(fmt.Errorf("goroutines were left after %v", Limit), err))
			code = 1
		}
	}
	if code != 0 {
		fmt.Fprintf(os.Stderr, "drawn with -seed=%d\n", seed)
	}
	os.Exit(code)
}

// ManyAtOnce lets more parallel tests run at once than there are cores, because they mostly wait. It
// is for Main.
func ManyAtOnce(tb testing.TB) {
	tb.Helper()
	MustT(tb, flag.Set("test.parallel", "8"))
}

// AllAtOnce lets all parallel tests run at once. It is for Main.
func AllAtOnce(tb testing.TB) {
	tb.Helper()
	MustT(tb, flag.Set("test.parallel", "16"))
}

// CollectLess makes garbage collections rare, which take a third of the time of decoding otherwise.
// It is for Main.
func CollectLess(testing.TB) {
	const percent = 800
	debug.SetGCPercent(percent)
}

// leaked waits until no goroutine is left. After Limit it returns an error that names those that are
// left.
func leaked() error {
	for end := time.Now().Add(Limit); ; {
		// klog, which client-go uses, has a goroutine that never ends.
		err := goleak.Find(goleak.IgnoreTopFunction("k8s.io/klog/v2.(*flushDaemon).run.func1"))
		if err == nil || time.Now().After(end) {
			return err
		}
	}
}
