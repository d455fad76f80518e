package feed

import (
	"context"
	"time"

	"golang.org/x/sync/singleflight"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/version"

	"github.com/watchproxy/watchproxy/watchcache/upstream/client"
)

// responsiveness measures how long upstream takes for a request that concerns no feed. All callers
// share a request, and its result for a while.
type responsiveness struct {
	flights singleflight.Group
	// The last result. Only flights use it, one after the other.
	asked time.Time
	took  time.Duration
}

// Measure returns how long upstream takes, or the time for which the caller has waited, which is at
// most most. An error is an answer, too. A result is used for the time fresh.
func (r *responsiveness) Measure(
	ctx context.Context, c *client.Client, most, fresh time.Duration,
) time.Duration {
	called := time.Now()
	ctx, cancel := context.WithTimeout(ctx, most)
	defer cancel()
	measured := r.flights.DoChan("", func() (any, error) {
		if !r.asked.IsZero() && time.Since(r.asked) < r.took+fresh {
			return r.took, nil
		}
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), most)
		defer cancel()
		r.asked = time.Now()
		_ = c.Read(ctx, schema.GroupVersionResource{}, "/version", &version.Info{})
		r.took = time.Since(r.asked)
		return r.took, nil
	})
	select {
	case m := <-measured:
		return m.Val.(time.Duration) //nolint:forcetypeassert // see above
	case <-ctx.Done():
		return time.Since(called)
	}
}
