package cluster

import (
	"context"
	"testing"
	"time"
)

// Limit limits each wait for an event that normally happens soon. It is only reached if something
// is broken, even on a busy machine.
const Limit = 2 * time.Minute

// Eventually waits until a condition is true.
func Eventually(tb testing.TB, what string, holds func() bool) {
	tb.Helper()
	Within(tb, Limit, what, holds)
}

// Within is Eventually with another time limit. A limit below a minute is for tests that measure
// time, which make verify runs.
func Within(tb testing.TB, bound time.Duration, what string, holds func() bool) {
	tb.Helper()
	const pause = 20 * time.Millisecond
	for end := time.Now().Add(bound); !holds(); Pause(tb.Context(), pause) {
		if time.Now().After(end) || tb.Context().Err() != nil {
			tb.Fatalf("%s: not within %v", what, bound)
		}
	}
}

// Receive waits for a value.
func Receive[T any](tb testing.TB, what string, from <-chan T) (v T) {
	tb.Helper()
	select {
	case v = <-from:
	case <-time.After(Limit):
		tb.Fatalf("%s: not within %v", what, Limit)
	}
	return v
}

// Pause waits for d or until ctx ends.
func Pause(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}
