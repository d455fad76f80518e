package upstream

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"go.uber.org/zap"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/watchproxy/watchproxy/watchcache"
	"github.com/watchproxy/watchproxy/watchcache/object"
	"github.com/watchproxy/watchproxy/watchcache/upstream/client"
	"github.com/watchproxy/watchproxy/watchcache/upstream/feed"
)

// Part is the part of a resource that a cache contains.
type Part struct {
	Resource schema.GroupResource
	Scope    object.Scope
}

// Warming is the filling of caches before the first request. Later, these caches count as used.
type Warming struct {
	feeds *Feeds
	mu    struct {
		sync.Mutex
		cold map[Part]error // the last error
	}
}

// coldRetry is the time between two attempts to fill a cache. Upstream is not asked each time,
// because refusals are remembered.
const coldRetry = time.Second

// warmUse is the time between two uses of a cache that has been filled. It must be below the idle
// timeout. A cache that was given up is filled again.
const warmUse = 10 * time.Minute

// Warm begins to fill the caches of parts, as JSON, in the newest stable version. Each part is
// tried until it succeeds.
func (fs *Feeds) Warm(parts []Part) *Warming {
	w := &Warming{feeds: fs}
	w.mu.cold = map[Part]error{}
	for _, p := range parts {
		w.mu.cold[p] = nil
	}
	for _, p := range parts { // the map is shared from here on
		fs.running.Go(func() { w.warm(fs.ctx, p) })
	}
	return w
}

func (w *Warming) warm(ctx context.Context, p Part) {
	for logged := ""; ; {
		err := w.fill(ctx, p)
		w.note(p, err)
		if err == nil {
			break
		}
		if text := err.Error(); text != logged && !errors.Is(err, watchcache.ErrNoProgress) {
			logged = text
			const cold = "a cache that has to be warm cannot be filled; /readyz fails until it is"
			w.feeds.shared.Log.Warn(cold, zap.Stringer("resource", p.Resource),
				zap.Stringer("scope", p.Scope), zap.Error(err))
		}
		if !client.Sleep(ctx, coldRetry) {
			return
		}
	}
	for client.Sleep(ctx, warmUse) {
		_ = w.fill(ctx, p)
	}
}

func (w *Warming) fill(ctx context.Context, p Part) error {
	gvr, err := w.feeds.shared.Names.Preferred(ctx, p.Resource)
	if err != nil {
		return err
	}
	_, err = w.feeds.open(ctx, feed.Key{GVR: gvr, Scope: p.Scope}, 0)
	return err
}

func (w *Warming) note(p Part, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if err == nil {
		delete(w.mu.cold, p)
	} else {
		w.mu.cold[p] = err
	}
}

// Err returns an error that names a cache that is not filled yet, or nil.
func (w *Warming) Err() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	for p, err := range w.mu.cold {
		name := p.Resource.String()
		if scope := p.Scope.String(); scope != "" {
			name += " " + scope
		}
		if err == nil {
			return fmt.Errorf("the cache of %s is not filled yet", name)
		}
		return fmt.Errorf("the cache of %s cannot be filled: %w", name, err)
	}
	return nil
}
