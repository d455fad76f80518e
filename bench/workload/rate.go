package workload

import (
	"context"
	"sync"
	"time"
)

// During makes so many writes per second while do runs, of which limit may be in flight. When all are, writes are
// skipped, and the rate is what the server can take. If a write fails, do's context ends for that reason. Nothing is in
// flight when it returns.
func During(ctx context.Context, rate, limit int, write func(ctx context.Context, i int) error, do func(ctx context.Context) error) error {
	doing, cancel := context.WithCancelCause(ctx)
	stop := make(chan struct{})
	ticks := make(chan int)
	var workers sync.WaitGroup
	workers.Go(func() { tick(stop, rate, ticks) })
	for range limit {
		workers.Go(func() {
			for i := range ticks {
				// Not doing: a write that is cut short when do returns might have been made or not.
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

// tick sends a number to whoever is free, rate times a second, and closes ticks when it is stopped.
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
