package upstream

import (
	"errors"
	"maps"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/watchproxy/watchproxy/watchcache/object"
	"github.com/watchproxy/watchproxy/watchcache/upstream/client"
	"github.com/watchproxy/watchproxy/watchcache/upstream/discovery"
	"github.com/watchproxy/watchproxy/watchcache/upstream/feed"
)

type refusal struct {
	err   error
	until time.Time
}

// refusals are the reasons why resources have no feed. The lock of feedSet guards them.
type refusals struct {
	byKey map[feed.Key]refusal // at most refusalsMax
	// forbidden contains the resources that upstream last refused with 403, at most refusalsMax.
	forbidden map[schema.GroupVersionResource]struct{}
}

const refusalsMax = 2000

func (r *refusals) note(key feed.Key, reason error, pause time.Duration) {
	if len(r.byKey) >= refusalsMax {
		over := func(_ feed.Key, old refusal) bool { return !time.Now().Before(old.until) }
		maps.DeleteFunc(r.byKey, over)
	}
	if len(r.byKey) >= refusalsMax {
		clear(r.byKey)
	}
	r.byKey[key] = refusal{reason, time.Now().Add(pause)}
}

func (r *refusals) of(key feed.Key) error {
	if old, ok := r.byKey[key]; ok && time.Now().Before(old.until) {
		return old.err
	}
	return nil
}

// knownForbidden records whether upstream forbids a resource, and reports whether that was already
// known. So the log contains one message per resource instead of one per encoding and attempt.
func (r *refusals) knownForbidden(gvr schema.GroupVersionResource, forbidden bool) (known bool) {
	_, known = r.forbidden[gvr]
	switch {
	case !forbidden:
		delete(r.forbidden, gvr)
	case !known && len(r.forbidden) < refusalsMax:
		r.forbidden[gvr] = struct{}{}
	}
	return known
}

func pauseAfter(err error) time.Duration {
	switch {
	case errors.Is(err, discovery.ErrNotCacheable), errors.Is(err, object.ErrNoEncoding),
		errors.Is(err, object.ErrMalformed), errors.Is(err, object.ErrOpaqueResourceVersion):
		return time.Minute
	case apierrors.IsForbidden(err), apierrors.IsUnauthorized(err):
		return 30 * time.Second
	}
	return max(2*time.Second, client.RetryAfter(err))
}
