package workload

import (
	"context"
	"sync"
	"sync/atomic"
)

// Parallel calls do for 0 to n-1, at most limit calls at a time, and waits for all calls. After the
// first error it starts no more calls and returns this error.
func Parallel(ctx context.Context, n, limit int, do func(ctx context.Context, i int) error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var next atomic.Int64
	var calls sync.WaitGroup
	for range min(n, limit) {
		calls.Go(func() {
			for ctx.Err() == nil {
				i := int(next.Add(1)) - 1
				if i >= n {
					return
				}
				if err := do(ctx, i); err != nil {
					cancel(err)
					return
				}
			}
		})
	}
	calls.Wait()
	return context.Cause(ctx)
}
