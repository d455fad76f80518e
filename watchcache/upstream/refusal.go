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
	"github.com/watchproxy/watchproxy/watchcache/upstream/store"
)

// refusal is the reason why a resource has no feed, remembered for a while.
type refusal struct {
	err   error
	until time.Time
}

// refusalsMax bounds the memory for refusals.
const refusalsMax = 1000

func (fs *Feeds) refuseLocked(key store.Key, reason error, pause time.Duration) {
	if len(fs.mu.refused) >= refusalsMax {
		maps.DeleteFunc(fs.mu.refused, func(_ store.Key, r refusal) bool { return !time.Now().Before(r.until) })
	}
	if len(fs.mu.refused) >= refusalsMax {
		clear(fs.mu.refused)
	}
	fs.mu.refused[key] = refusal{reason, time.Now().Add(pause)}
}

// knownForbiddenLocked records whether upstream forbids a resource, and returns whether that was
// already known. So the log says it once, not for each encoding and attempt.
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

// notForUs tells whether a feed ended because its resource cannot or must not be cached. If
// upstream is down, it returns false.
func notForUs(err error) bool {
	return errors.Is(err, discovery.ErrNotCacheable) || errors.Is(err, object.ErrNoEncoding)
}
