package exchange

import (
	"context"
	"slices"
	"sync"
	"time"
)

// Context is a context that ends when End is called. Most contexts of open watches have no waiters.
// So a Context allocates a channel or a list of functions only on demand. The zero value is ready
// to use.
type Context struct {
	mu struct {
		sync.Mutex
		ended bool
		done  chan struct{}
		after []*func()
	}
}

// End ends the context. It passes each function that AfterFunc registered to run.
func (c *Context) End(run func(func())) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.mu.ended {
		return
	}
	c.mu.ended = true
	if c.mu.done != nil {
		close(c.mu.done)
	}
	for _, f := range c.mu.after {
		run(*f)
	}
	c.mu.after = nil
}

// Done implements context.Context.
func (c *Context) Done() <-chan struct{} {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.mu.done == nil {
		c.mu.done = make(chan struct{})
		if c.mu.ended {
			close(c.mu.done)
		}
	}
	return c.mu.done
}

// Err implements context.Context.
func (c *Context) Err() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.mu.ended {
		return context.Canceled
	}
	return nil
}

// AfterFunc registers f to be called when the context ends. context.AfterFunc uses this method.
func (c *Context) AfterFunc(f func()) (stop func() bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.mu.ended {
		go f()
		return func() bool { return false }
	}
	p := &f
	c.mu.after = append(c.mu.after, p)
	return func() bool {
		c.mu.Lock()
		defer c.mu.Unlock()
		i := slices.Index(c.mu.after, p)
		if i < 0 {
			return false
		}
		if c.mu.after = slices.Delete(c.mu.after, i, i+1); len(c.mu.after) == 0 {
			c.mu.after = nil
		}
		return true
	}
}

// Deadline implements context.Context. It returns no deadline.
func (*Context) Deadline() (deadline time.Time, ok bool) { return time.Time{}, false }

// Value implements context.Context. It returns nil.
func (*Context) Value(any) any { return nil }

// AfterFunc replaces context.AfterFunc, which allocates 300 bytes even if the context has its own
// AfterFunc.
func AfterFunc(ctx context.Context, f func()) (stop func() bool) {
	if own, ok := ctx.(*Context); ok {
		return own.AfterFunc(f)
	}
	return context.AfterFunc(ctx, f)
}
