package cluster

import (
	"context"
	"fmt"
	"os"
	"slices"
	"sync"
	"testing"
)

// Shared returns a function that starts a fixture at its first call and returns the same fixture at
// later calls. Main ends the fixture.
func Shared[T any](start func(tb testing.TB) *T) func(tb testing.TB) *T {
	var once sync.Once
	var made *T
	return func(tb testing.TB) *T {
		tb.Helper()
		once.Do(func() { made = start(lasting{tb}) })
		if made == nil {
			tb.Fatal("what the tests share could not be made")
		}
		return made
	}
}

// atEnd holds the cleanups that Main runs after the tests.
var atEnd struct {
	sync.Mutex
	cleanups []func()
	failed   bool
}

// endShared runs the cleanups in reverse order.
func endShared() {
	for _, end := range slices.Backward(atEnd.cleanups) {
		end()
	}
}

// lasting is a test whose cleanups run after all tests. An error in a cleanup fails the package.
// lasting without a test is for the setup of the package.
type lasting struct{ testing.TB }

func (l lasting) Helper() {
	if l.TB != nil {
		l.TB.Helper()
	}
}

func (l lasting) Fatal(args ...any) { l.Fatalf("%s", fmt.Sprintln(args...)) }

func (l lasting) Fatalf(format string, args ...any) {
	l.Helper()
	if l.TB != nil {
		l.TB.Fatalf(format, args...)
	}
	l.Errorf(format, args...)
	endShared()
	os.Exit(1)
}

func (lasting) Context() context.Context { return context.Background() }

func (lasting) Cleanup(f func()) {
	atEnd.Lock()
	defer atEnd.Unlock()
	atEnd.cleanups = append(atEnd.cleanups, f)
}

func (l lasting) TempDir() string {
	l.Helper()
	dir, err := os.MkdirTemp("", "shared-")
	if err != nil {
		l.Fatal(err)
	}
	l.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			l.Error(err)
		}
	})
	return dir
}

func (l lasting) Error(args ...any) { l.Errorf("%s", fmt.Sprintln(args...)) }

func (l lasting) Errorf(format string, args ...any) {
	l.Logf(format, args...)
	atEnd.failed = true
}

func (lasting) Logf(format string, args ...any) { fmt.Fprintf(os.Stderr, format+"\n", args...) }

func (lasting) Failed() bool { return atEnd.failed }
