package clients

import (
	"errors"
	"fmt"
	"net/http"
	"os"
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	os.Setenv("GORACE", "atexit_sleep_ms=0") // or each end of a proxy takes a second longer
	code := m.Run()
	err := closeWorld()
	http.DefaultTransport.(*http.Transport).CloseIdleConnections()
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
const limit = 30 * time.Second

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

// receive waits for a value.
func receive[T any](tb testing.TB, what string, from <-chan T) T {
	tb.Helper()
	timer := time.NewTimer(limit)
	defer timer.Stop()
	select {
	case v := <-from:
		return v
	case <-timer.C:
		tb.Fatalf("%s: not within %v", what, limit)
		panic("unreachable")
	}
}
