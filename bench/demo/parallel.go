package main

import (
	"context"
	"sync"
	"sync/atomic"
)

// parallel calls do for 0 to n-1, limit of them at a time, and shows how far it is. It returns when no call is running
// any more, with the first error; then not all have been made.
func parallel(ctx context.Context, s *screen, what string, n, limit int, do func(ctx context.Context, i int) error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	s.progress(what, 0, n)
	var next, done atomic.Int64
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
				s.progress(what, int(done.Add(1)), n)
			}
		})
	}
	calls.Wait()
	return context.Cause(ctx)
}
