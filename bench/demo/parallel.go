package main

import (
	"context"
	"sync/atomic"

	"github.com/watchproxy/watchproxy/bench/workload"
)

// parallel is [workload.Parallel] with a display of its progress.
func parallel(ctx context.Context, s *screen, what string, n, limit int, do func(ctx context.Context, i int) error) error {
	s.progress(what, 0, n)
	var done atomic.Int64
	return workload.Parallel(ctx, n, limit, func(ctx context.Context, i int) error {
		err := do(ctx, i)
		if err == nil {
			s.progress(what, int(done.Add(1)), n)
		}
		return err
	})
}
