package workload

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

func TestParallel(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const n, limit = 10, 3
		var calls [n]atomic.Int64
		var running, most atomic.Int64
		began := time.Now()
		err := Parallel(t.Context(), n, limit, func(_ context.Context, i int) error {
			most.Store(max(most.Load(), running.Add(1)))
			time.Sleep(time.Second)
			running.Add(-1)
			calls[i].Add(1)
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		for i := range calls {
			if n := calls[i].Load(); n != 1 {
				t.Errorf("call %d was made %d times", i, n)
			}
		}
		if took := time.Since(began); took != 4*time.Second || most.Load() > limit {
			t.Errorf("it took %v with up to %d at a time", took, most.Load())
		}
	})
}

func TestParallelStopsAtAnError(t *testing.T) {
	broken := errors.New("broken")
	var calls atomic.Int64
	err := Parallel(t.Context(), 1000, 2, func(ctx context.Context, i int) error {
		calls.Add(1)
		if i == 5 {
			return broken
		}
		if i > 5 {
			<-ctx.Done()
		}
		return nil
	})
	if !errors.Is(err, broken) {
		t.Errorf("got %v", err)
	}
	if n := calls.Load(); n > 7 {
		t.Errorf("there were %d calls", n)
	}
}
