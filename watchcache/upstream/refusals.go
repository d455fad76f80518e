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

// refusal is the reason why a resource has no feed. It is remembered for a while.
type refusal struct {
	err   error
	until time.Time
}

// refusalsMax is the maximum number of refusals.
const refusalsMax = 2000

func (fs *Feeds) refuseLocked(key feed.Key, reason error, pause time.Duration) {
	refused := fs.mu.refused
	if len(refused) >= refusalsMax {
		maps.DeleteFunc(refused, func(_ feed.Key, r refusal) bool { return !time.Now().Before(r.until) })
	}
	if len(refused) >= refusalsMax {
		clear(refused)
	}
	refused[key.Clone()] = refusal{reason, time.Now().Add(pause)}
}

// refusedLocked returns the reason why a key had no feed recently, or nil.
func (fs *Feeds) refusedLocked(key feed.Key) error {
	if r, ok := fs.mu.refused[key]; ok && time.Now().Before(r.until) {
		return r.err
	}
	return nil
}

// knownForbiddenLocked records whether upstream forbids a resource, and reports whether that was
// already known. So the log contains one message per resource instead of one per encoding and
// attempt.
func (fs *Feeds) knownForbiddenLocked(gvr schema.GroupVersionResource, forbidden bool) (known bool) {
	_, known = fs.mu.forbidden[gvr]
	switch {
	case !forbidden:
		delete(fs.mu.forbidden, gvr)
	case !known && len(fs.mu.forbidden) < refusalsMax:
		fs.mu.forbidden[gvr] = struct{}{}
	}
	return known
}

// pauseAfter returns how long a refusal is remembered.
func pauseAfter(err error) time.Duration {
	switch {
	case errors.Is(err, discovery.ErrNotCacheable), errors.Is(err, object.ErrNoEncoding), errors.Is(err, object.ErrMalformed),
		errors.Is(err, object.ErrOpaqueResourceVersion):
		return time.Minute
	case apierrors.IsForbidden(err), apierrors.IsUnauthorized(err):
		return 30 * time.Second
	}
	return max(2*time.Second, client.RetryAfter(err))
}
