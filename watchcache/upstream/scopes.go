package upstream

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/watchproxy/watchproxy/watchcache/object"
	"github.com/watchproxy/watchproxy/watchcache/upstream/discovery"
	"github.com/watchproxy/watchproxy/watchcache/upstream/feed"
	"github.com/watchproxy/watchproxy/watchcache/upstream/fresh"
)

// This file chooses the scope whose cache answers a read.
//
// The configuration can name the scopes of a resource. The narrowest of them that contains the read
// answers it. Without such a configuration, the cache of the whole resource answers. If upstream
// forbids the proxy to read the whole, the caches of single namespaces and of single objects do,
// because a Role or a rule with resourceNames may allow them. When a refusal has expired, a read
// makes the proxy try the wider scope again, and does not wait for it if there is a narrower cache.
// So the proxy uses new rights, and answers while upstream is away. A right that it has lost is noticed
// when a feed's next list or watch is refused.
//
// If no scope contains a read, upstream answers. A read is never narrowed.

var (
	// ErrOutOfScope means that no cache may contain all objects of a read.
	ErrOutOfScope = errors.New("the read goes beyond the scopes of the caches")
	errManyScopes = errors.New("there are too many caches of single namespaces and objects, or too many new ones")
)

const (
	// NarrowFeedsMax is the maximum number of feeds that exist only because upstream forbids a
	// wider one.
	NarrowFeedsMax = 200
	// narrowBurst and narrowRate limit the starts of such feeds, per second. Clients choose the
	// names, and each start costs upstream a request even if it is refused.
	narrowBurst, narrowRate = 50, 2
	// nameMost is the maximum length of the name of a namespace or an object, in bytes.
	nameMost = 253
)

// candidates returns the scopes that may answer a read, the preferred one first. If narrow is true,
// the later scopes are for the case that upstream forbids the earlier ones.
func (fs *Feeds) candidates(gvr schema.GroupVersionResource, w object.Want) (scopes []object.Scope, narrow bool) {
	if configured := fs.Options.Load().ScopesOf(gvr.GroupResource()); len(configured) > 0 {
		for _, s := range configured {
			if s.Contains(w) {
				scopes = append(scopes, s)
			}
		}
		return scopes, false
	}
	scopes = append(scopes, object.Scope{})
	if len(w.Namespace) > nameMost {
		return scopes, true
	}
	if w.Namespace != "" {
		scopes = append(scopes, object.Scope{Namespace: w.Namespace})
	}
	if name := w.SingleName(); name != "" && len(name) <= nameMost {
		scopes = append(scopes, object.ScopeOfName(w.Namespace, name))
	}
	return scopes, true
}

// covers reports whether the configuration allows a cache.
func covers(o *feed.Options, key feed.Key) bool {
	if configured := o.ScopesOf(key.GVR.GroupResource()); len(configured) > 0 {
		return slices.Contains(configured, key.Scope)
	}
	s, err := fields.ParseSelector(key.Scope.Fields)
	named := err == nil && len(s.Requirements()) == 1 && s.Requirements()[0].Field == "metadata.name"
	return key.Scope.Labels == "" && (key.Scope.Fields == "" || named)
}

// Open returns the feed whose scope contains a read, in an encoding. It starts the feed if
// necessary, and waits until the cache is filled or ctx ends. After an error, the request must go
// to upstream. After [object.ErrNoEncoding], another encoding may work.
//
// since is the resourceVersion that a client resumes from, or 0. If upstream still has that
// history, a new feed begins its history there.
func (fs *Feeds) Open(ctx context.Context, gvr schema.GroupVersionResource, w object.Want, encoding object.Encoding, since uint64) (*fresh.Feed, error) {
	if w.Split {
		if namespaced, err := fs.Names.Namespaced(ctx, gvr); err != nil || !namespaced {
			return nil, cmp.Or(err, ErrOutOfScope)
		}
	}
	err := ErrOutOfScope
	scopes, narrow := fs.candidates(gvr, w)
	key := feed.Key{GVR: gvr, Encoding: encoding}
	if narrow && len(scopes) > 1 {
		if f := fs.ready(key, scopes); f != nil {
			if err = use(ctx, f, since); err == nil || !tooWide(err) {
				return f, err
			}
		}
	}
	for _, key.Scope = range scopes {
		var f *fresh.Feed
		if f, err = fs.open(ctx, key, since); err == nil || narrow && !tooWide(err) {
			return f, err
		}
	}
	return nil, err
}

// ready returns the feed of the widest scope whose cache is filled, or nil. It starts the feeds of
// wider scopes, unless upstream has recently refused them.
func (fs *Feeds) ready(key feed.Key, scopes []object.Scope) *fresh.Feed {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	for i, scope := range scopes {
		key.Scope = scope
		f := fs.mu.feeds[key]
		if f == nil || !f.Started() || !f.Cache().Stats().Ready {
			continue
		}
		for _, key.Scope = range scopes[:i] {
			_, _ = fs.feedLocked(key, time.Now())
		}
		return f
	}
	return nil
}

// tooWide reports whether the proxy might be allowed to read a narrower scope.
func tooWide(err error) bool {
	return apierrors.IsForbidden(err) && !errors.Is(err, discovery.ErrNotCacheable)
}

// Caches reports, without waiting, whether a read may have a feed. It returns false for excluded
// resources, for resources that were recently missing or not cacheable, and for reads beyond all
// scopes.
func (fs *Feeds) Caches(gvr schema.GroupVersionResource, w object.Want) bool {
	if fs.Options.Load().Excludes(gvr) {
		return false
	}
	scopes, narrow := fs.candidates(gvr, w)
	fs.mu.Lock()
	defer fs.mu.Unlock()
	for _, scope := range scopes {
		for _, encoding := range []object.Encoding{object.JSON, object.Protobuf, object.Table} {
			if fs.mu.feeds[feed.Key{GVR: gvr, Encoding: encoding, Scope: scope}] != nil {
				return true
			}
		}
	}
	for _, scope := range scopes {
		refused := fs.refusedLocked(feed.Key{GVR: gvr, Scope: scope})
		if refused == nil || errors.Is(refused, feed.ErrServedAnew) {
			return !fs.Names.Lacks(gvr)
		}
		if narrow && !tooWide(refused) {
			return false
		}
	}
	return false
}

// AnswersGets reports, without waiting, whether a feed may answer a get of the most recent state (see
// [fresh.Feed.AnswersGets]).
func (fs *Feeds) AnswersGets(gvr schema.GroupVersionResource, w object.Want, encoding object.Encoding) bool {
	scopes, narrow := fs.candidates(gvr, w)
	if !narrow {
		scopes = scopes[:min(1, len(scopes))] // Open waits for the narrowest
	}
	f := fs.ready(feed.Key{GVR: gvr, Encoding: encoding}, scopes)
	return f != nil && f.ServesConsistent() && f.Settled() && f.AnswersGets()
}

// roomLocked returns an error if a feed must not start, because clients could start any number of
// its kind by the namespaces and names in their requests.
func (fs *Feeds) roomLocked(key feed.Key) error {
	options := fs.Options.Load()
	narrow := func(key feed.Key) bool {
		return !key.Scope.Whole() && len(options.ScopesOf(key.GVR.GroupResource())) == 0
	}
	if !narrow(key) {
		return nil
	}
	n := 0
	for key := range fs.mu.feeds {
		if narrow(key) {
			n++
		}
	}
	if n >= NarrowFeedsMax || !fs.narrowStarts.Allow() {
		return errManyScopes
	}
	return nil
}
