package workload

import (
	"context"
	"sync"
	"time"
)

// During makes rate writes per second while do runs. At most limit writes are in flight. If the
// server is too slow for that, During skips writes. If a write fails, do's context ends with that
// error. When During returns, no write is in flight.
func During(ctx context.Context, rate, limit int, write func(ctx context.Context, i int) error, do func(ctx context.Context) error) error {
	doing, cancel := context.WithCancelCause(ctx)
	stop := make(chan struct{})
	ticks := make(chan int)
	var workers sync.WaitGroup
	workers.Go(func() { tick(stop, rate, ticks) })
	for range limit {
		workers.Go(func() {
			for i := range ticks {
				// Don't use doing here: if the end of do interrupted a write, the write's outcome
				// would be unknown.
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

// tick sends successive numbers, rate times a second, and skips a time at which no receiver is
// ready. It closes ticks when it is stopped.
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
