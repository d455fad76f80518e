package access

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"testing"
	"time"

	"go.uber.org/goleak"
)

var self = flag.Bool("self", false, "compare the apiserver with itself: no proxy is started")

func TestMain(m *testing.M) {
	os.Setenv("GORACE", "atexit_sleep_ms=0") // or each end of a proxy takes a second longer
	code := m.Run()
	err := closeWorld()
	if code == 0 {
		// klog, which client-go brings along, flushes for as long as the process lives.
		err = errors.Join(err, goleak.Find(goleak.IgnoreTopFunction("k8s.io/klog/v2.(*flushDaemon).run.func1")))
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = max(code, 1)
	}
	os.Exit(code)
}

// limit bounds every wait for something that ought to happen soon, on a machine that is busy with other things.
const limit = 60 * time.Second

// eventually waits until a condition holds.
func eventually(tb testing.TB, what string, holds func() bool) {
	tb.Helper()
	within(tb, limit, what, holds)
}

func within(tb testing.TB, bound time.Duration, what string, holds func() bool) {
	tb.Helper()
	const pause = 20 * time.Millisecond
	end := time.Now().Add(bound)
	for !holds() {
		if time.Now().After(end) {
			tb.Fatalf("%s: not within %v", what, bound)
		}
		time.Sleep(pause)
	}
}

// notWithSelf skips a test of what the apiserver does not do.
func notWithSelf(t *testing.T) {
	t.Helper()
	if *self {
		t.Skip("the apiserver is no proxy")
	}
}
