// Package tasks runs goroutines that end with what they work for.
package tasks

import (
	"context"
	"sync"
)

// Tasks are the goroutines of a longer work. The zero value is not usable.
type Tasks struct {
	Context context.Context //nolint:containedctx // the life of the work
	Stop    context.CancelFunc
	running sync.WaitGroup
	mu      struct {
		sync.Mutex
		over bool
	}
}

// New returns no tasks yet. They end with ctx, or after Stop.
func New(ctx context.Context) *Tasks {
	ctx, stop := context.WithCancel(ctx)
	return &Tasks{Context: ctx, Stop: stop}
}

// Go runs a task. It returns false if End was called.
func (t *Tasks) Go(task func(ctx context.Context)) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.mu.over {
		t.running.Go(func() { task(t.Context) })
	}
	return !t.mu.over
}

// End prevents further tasks, ends the running ones, and waits for them.
func (t *Tasks) End() {
	t.mu.Lock()
	t.mu.over = true
	t.mu.Unlock()
	t.Stop()
	t.running.Wait()
}
