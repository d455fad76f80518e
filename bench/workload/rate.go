package workload

import (
	"context"
	"sync"
	"time"
)

// During makes rate writes per second while do runs. At most limit writes are in flight; beyond
// that it skips writes, and the server sets the rate. If a write fails, do's context ends with that
// error. No write is in flight when During returns.
func During(ctx context.Context, rate, limit int, write func(ctx context.Context, i int) error, do func(ctx context.Context) error) error {
	doing, cancel := context.WithCancelCause(ctx)
	stop := make(chan struct{})
	ticks := make(chan int)
	var workers sync.WaitGroup
	workers.Go(func() { tick(stop, rate, ticks) })
	for range limit {
		workers.Go(func() {
			for i := range ticks {
				// This uses ctx instead of doing: if do's end cut a write short, its outcome would
				// be unknown.
				if err := write(ctx, i); err != nil {
					cancel(err)
				}
			}
		})
	}
	err := do(doing)
	close(stop)
	workers.Wait()
	cancel(nil)
	return err
}

// tick sends a number to a free receiver, rate times a second, and closes ticks when it is stopped.
func tick(stop <-chan struct{}, rate int, ticks chan<- int) {
	defer close(ticks)
	ticker := time.NewTicker(time.Second / time.Duration(rate))
	defer ticker.Stop()
	for i := 0; ; i++ {
		select {
		case <-ticker.C:
		case <-stop:
			return
		}
		select {
		case ticks <- i:
		default:
		}
	}
}
