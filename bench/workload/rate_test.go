package workload

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

func TestDuring(t *testing.T) {
	for _, test := range []struct {
		name   string
		takes  time.Duration // the time that a write takes
		writes int64
	}{
		{"as asked", 10 * time.Millisecond, 100},
		{"as fast as it can", time.Second, 20},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				const rate, limit = 10, 2
				var begun, ended atomic.Int64
				write := func(context.Context, int) error {
					begun.Add(1)
					time.Sleep(test.takes)
					ended.Add(1)
					return nil
				}
				err := During(t.Context(), rate, limit, write, func(context.Context) error {
					time.Sleep(10*time.Second + time.Millisecond)
					return nil
				})
				if err != nil {
					t.Fatal(err)
				}
				if got := begun.Load(); got < test.writes-limit || got > test.writes+limit {
					t.Errorf("%d writes instead of %d", got, test.writes)
				}
				if begun.Load() != ended.Load() {
					t.Errorf("%d of %d writes had ended", ended.Load(), begun.Load())
				}
			})
		})
	}
}

func TestDuringEndsWithAWrite(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		broken := errors.New("broken")
		err := During(t.Context(), 10, 2, func(context.Context, int) error { return broken }, func(ctx context.Context) error {
			<-ctx.Done()
			return context.Cause(ctx)
		})
		if !errors.Is(err, broken) {
			t.Errorf("got %v", err)
		}
	})
}
