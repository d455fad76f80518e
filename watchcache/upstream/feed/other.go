package feed

import (
	"context"
	"sync"
	"time"

	"golang.org/x/sync/singleflight"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/version"

	"github.com/watchproxy/watchproxy/watchcache/upstream/client"
)

// other measures how long upstream takes for a request that concerns no feed. All callers share a
// request, and its result for a while.
type other struct {
	flights singleflight.Group
	mu      struct {
		sync.Mutex
		asked time.Time
		took  time.Duration
	}
}

// otherFor is how long a measured time is used.
const otherFor = Patience / 4

// ask returns how long upstream takes, or how long the caller has waited. An error is an answer, too.
func (o *other) ask(ctx context.Context, c *client.Client) time.Duration {
	called := time.Now()
	ctx, cancel := context.WithTimeout(ctx, MostPatience-Patience)
	defer cancel()
	measured := o.flights.DoChan("", func() (any, error) {
		o.mu.Lock()
		asked, took := o.mu.asked, o.mu.took
		o.mu.Unlock()
		if !asked.IsZero() && time.Since(asked) < otherFor+took {
			return took, nil
		}
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), MostPatience-Patience)
		defer cancel()
		asked = time.Now()
		_ = c.Read(ctx, schema.GroupVersionResource{}, "/version", &version.Info{})
		took = time.Since(asked)
		o.mu.Lock()
		o.mu.asked, o.mu.took = asked, took
		o.mu.Unlock()
		return took, nil
	})
	select {
	case m := <-measured:
		return m.Val.(time.Duration) //nolint:forcetypeassert // see above
	case <-ctx.Done():
		return time.Since(called)
	}
}
