package upstream

import (
	"context"
	"fmt"
	"maps"
	"math"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/watchproxy/watchproxy/watchcache"
	"github.com/watchproxy/watchproxy/watchcache/object"
	"github.com/watchproxy/watchproxy/watchcache/upstream/client"
	"github.com/watchproxy/watchproxy/watchcache/upstream/feed"
	"github.com/watchproxy/watchproxy/watchcache/upstream/fresh"
)

// feedSet contains the running feeds, and remembers for a while why others do not run.
type feedSet struct {
	ctx    context.Context //nolint:containedctx // the life of the feeds
	shared *feed.Shared
	saving atomic.Pointer[MemoryPressure]
	mu     struct {
		sync.Mutex
		// The resources in the maps come from discovery, and the scopes from the configuration and
		// the proxy's pod, so clients cannot add any.
		feeds    map[feed.Key]*fresh.Feed
		refusals refusals
	}
}

func newFeedSet(ctx context.Context, u *feed.Shared) *feedSet {
	s := &feedSet{ctx: ctx, shared: u}
	s.saving.Store(&MemoryPressure{})
	s.mu.feeds = map[feed.Key]*fresh.Feed{}
	s.mu.refusals = refusals{
		map[feed.Key]refusal{}, map[schema.GroupVersionResource]struct{}{},
	}
	return s
}

// find returns the running feed of a key, or why there is none. Neither means that it can start.
func (s *feedSet) find(key feed.Key) (*fresh.Feed, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.findLocked(key)
}

func (s *feedSet) findLocked(key feed.Key) (*fresh.Feed, error) {
	switch options := s.shared.Options.Load(); {
	case options.Excludes(key.GVR):
		return nil, ErrExcluded
	case !covers(options, key):
		return nil, ErrOutOfScope
	}
	if f := s.mu.feeds[key]; f != nil {
		return f, nil
	}
	if s.ctx.Err() != nil {
		return nil, errStopped
	}
	if key.Encoding == object.Protobuf {
		f := s.mu.feeds[feed.Key{GVR: key.GVR, Scope: key.Scope}]
		if f != nil && f.Feed.Progress.Started() && f.Cache().Resource().SelfDescribing {
			// known without a request to upstream
			return nil, fmt.Errorf("%w: %s is a custom one", object.ErrNoEncoding, key.GVR)
		}
	}
	if err := s.mu.refusals.of(key); err != nil {
		return nil, err
	}
	if s.saving.Load().NoNewFeeds {
		return nil, ErrNoMemory
	}
	return nil, nil
}

// findOrAdd returns the running feed of a key. If there is none and a feed can be started, it adds
// the feed that add returns. add gets a key of its own, and the limits of the feed's log.
func (s *feedSet) findOrAdd(
	key feed.Key, add func(feed.Key, watchcache.Limits) *fresh.Feed,
) (*fresh.Feed, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if f, err := s.findLocked(key); f != nil || err != nil {
		return f, err
	}
	delete(s.mu.refusals.byKey, key)
	key = key.Clone() // the feed must not keep the request's strings
	f := add(key, s.saving.Load().limits(s.shared.Options.Load().Limits))
	s.mu.feeds[key] = f
	return f, nil
}

func (s *feedSet) filled(key feed.Key, scopes []object.Scope) (*fresh.Feed, int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i, scope := range scopes {
		key.Scope = scope
		f := s.mu.feeds[key]
		if f != nil && f.Feed.Progress.Started() && f.Cache().Stats().Ready {
			return f, i
		}
	}
	return nil, 0
}

func (s *feedSet) has(gvr schema.GroupVersionResource, scopes []object.Scope) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	key := feed.Key{GVR: gvr}
	for _, key.Scope = range scopes {
		for _, key.Encoding = range []object.Encoding{object.JSON, object.Protobuf, object.Table} {
			if s.mu.feeds[key] != nil {
				return true
			}
		}
	}
	return false
}

func (s *feedSet) refusal(key feed.Key) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.mu.refusals.of(key)
}

// setOptions forgets all refusals, whose reasons may be outdated, and returns the running feeds.
func (s *feedSet) setOptions(options *feed.Options) []*fresh.Feed {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.shared.Options.Store(options)
	clear(s.mu.refusals.byKey)
	return slices.Collect(maps.Values(s.mu.feeds))
}

// Started returns the feeds that have a cache, ordered by group, version, resource and encoding.
func (s *feedSet) Started() []*fresh.Feed {
	s.mu.Lock()
	defer s.mu.Unlock()
	feeds := make([]*fresh.Feed, 0, len(s.mu.feeds))
	for _, f := range s.mu.feeds {
		if f.Feed.Progress.Started() {
			feeds = append(feeds, f)
		}
	}
	slices.SortFunc(feeds, func(a, b *fresh.Feed) int {
		return slices.Compare(a.Feed.Sorted(), b.Feed.Sorted())
	})
	return feeds
}

func (s *feedSet) giveUp(f *fresh.Feed, reason error, pause time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f.Feed.Abandon()
	if s.mu.feeds[f.Feed.Key] == f {
		delete(s.mu.feeds, f.Feed.Key)
		s.mu.refusals.note(f.Feed.Key, reason, pause)
	}
}

// ended removes a feed that has ended. err says why the resource is not cached; nil if it may be.
func (s *feedSet) ended(f *fresh.Feed, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.mu.feeds[f.Feed.Key] != f {
		return
	}
	delete(s.mu.feeds, f.Feed.Key)
	if err == nil {
		return
	}
	pause := pauseAfter(err)
	level, forbidden := zap.InfoLevel, apierrors.IsForbidden(err)
	if s.mu.refusals.knownForbidden(f.Feed.GVR, forbidden) && forbidden {
		level = zap.DebugLevel
	}
	f.Feed.Log.Log(level, "not cached; requests are forwarded",
		zap.Error(err), zap.Duration("for", pause))
	s.mu.refusals.note(f.Feed.Key, err, pause)
}

// retireIdle stops feeds that have not been used for IdleTimeout, until the set's life ends.
func (s *feedSet) retireIdle() {
	for {
		idle := s.shared.Options.Load().IdleTimeout
		if idle <= 0 {
			idle = math.MaxInt64
		}
		if !client.Sleep(s.ctx, min(time.Minute, idle/10)) {
			return
		}
		for _, f := range s.Started() {
			if f.Feed.Usage.Idle(f.Cache()) > idle {
				f.Feed.Log.Info("stopping idle feed")
				f.Feed.Stop()
			}
		}
	}
}
