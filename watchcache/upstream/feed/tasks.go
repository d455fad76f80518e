package feed

import (
	"context"
	"sync"
)

// tasks are the goroutines of a longer work. The zero value is not usable.
type tasks struct {
	Context context.Context //nolint:containedctx // the life of the work
	Stop    context.CancelFunc
	running sync.WaitGroup
	mu      struct {
		sync.Mutex
		over bool
	}
}

func newTasks(ctx context.Context) *tasks {
	ctx, stop := context.WithCancel(ctx)
	return &tasks{Context: ctx, Stop: stop}
}

// Go runs a task. It returns false if End was called.
func (t *tasks) Go(task func(ctx context.Context)) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.mu.over {
		t.running.Go(func() { task(t.Context) })
	}
	return !t.mu.over
}

// End prevents further tasks, ends the running ones, and waits for them.
func (t *tasks) End() {
	t.mu.Lock()
	t.mu.over = true
	t.mu.Unlock()
	t.Stop()
	t.running.Wait()
}
