package liveness

import (
	"context"
	"sync"
	"time"

	"golang.org/x/sync/singleflight"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/version"

	"github.com/watchproxy/watchproxy/watchcache/upstream/client"
)

// Responsiveness measures how long upstream takes for a request that concerns no feed. All callers
// share a request, and its result for a while.
type Responsiveness struct {
	flights singleflight.Group
	mu      struct {
		sync.Mutex
		asked time.Time
		took  time.Duration
	}
}

// Measure returns how long upstream takes, or the time for which the caller has waited, which is at
// most most. An error is an answer, too. A result is used for the time fresh.
func (r *Responsiveness) Measure(ctx context.Context, c *client.Client, most, fresh time.Duration) time.Duration {
	called := time.Now()
	ctx, cancel := context.WithTimeout(ctx, most)
	defer cancel()
	measured := r.flights.DoChan("", func() (any, error) {
		r.mu.Lock()
		asked, took := r.mu.asked, r.mu.took
		r.mu.Unlock()
		if !asked.IsZero() && time.Since(asked) < took+fresh {
			return took, nil
		}
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), most)
		defer cancel()
		asked = time.Now()
		_ = c.Read(ctx, schema.GroupVersionResource{}, "/version", &version.Info{})
		took = time.Since(asked)
		r.mu.Lock()
		r.mu.asked, r.mu.took = asked, took
		r.mu.Unlock()
		return took, nil
	})
	select {
	case m := <-measured:
		return m.Val.(time.Duration) //nolint:forcetypeassert // see above
	case <-ctx.Done():
		return time.Since(called)
	}
}
