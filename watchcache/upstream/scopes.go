package upstream

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/watchproxy/watchproxy/watchcache/object"
	"github.com/watchproxy/watchproxy/watchcache/upstream/discovery"
	"github.com/watchproxy/watchproxy/watchcache/upstream/feed"
	"github.com/watchproxy/watchproxy/watchcache/upstream/fresh"
)

// This file chooses the scope whose cache answers a read.
//
// The narrowest configured scope of the resource that contains the read answers it. Without such a
// configuration, the cache of the whole resource answers. If upstream forbids the proxy to read the
// whole, the cache of the pod's own namespace does, because a Role may allow it. When a refusal has
// expired, a read makes the proxy try the whole again, and does not wait for it if there is the
// other cache. So the proxy uses new rights, and answers while upstream is away. A right that it
// has lost is noticed when a feed's next list or watch is refused.
//
// If no scope contains a read, upstream answers. A read is never narrowed.

// ErrOutOfScope means that no cache may contain all objects of a read.
var ErrOutOfScope = errors.New("the read goes beyond the scopes of the caches")

// candidates returns the scopes that may answer a read, the preferred one first. If forbidden is
// true, the second one is for the case that upstream forbids the first one.
func candidates(
	o *feed.Options, gvr schema.GroupVersionResource, w object.Want,
) (scopes []object.Scope, forbidden bool) {
	if configured := o.ScopesOf(gvr.GroupResource()); len(configured) > 0 {
		for _, s := range configured {
			if s.Contains(w) {
				scopes = append(scopes, s)
			}
		}
		return scopes, false
	}
	scopes = append(scopes, object.Scope{})
	if w.Namespace != "" && w.Namespace == o.OwnNamespace {
		scopes = append(scopes, object.Scope{Namespace: o.OwnNamespace})
	}
	return scopes, true
}

func covers(o *feed.Options, key feed.Key) bool {
	if configured := o.ScopesOf(key.GVR.GroupResource()); len(configured) > 0 {
		return slices.Contains(configured, key.Scope)
	}
	return key.Scope.Whole() || key.Scope == object.Scope{Namespace: o.OwnNamespace}
}

// Open returns the feed whose scope contains a read, in an encoding. It starts the feed if
// necessary, and waits until the cache is filled or ctx ends. After an error, the request must go
// to upstream. After [object.ErrNoEncoding], another encoding may work.
//
// since is the resourceVersion that a client resumes from, or 0. If upstream still has that
// history, a new feed begins its history there.
func (fs *Feeds) Open(
	ctx context.Context, gvr schema.GroupVersionResource, w object.Want, encoding object.Encoding,
	since uint64,
) (*fresh.Feed, error) {
	if w.Split {
		if namespaced, err := fs.shared.Names.Namespaced(ctx, gvr); err != nil || !namespaced {
			return nil, cmp.Or(err, ErrOutOfScope)
		}
	}
	err := ErrOutOfScope
	scopes, forbidden := candidates(fs.shared.Options.Load(), gvr, w)
	key := feed.Key{GVR: gvr, Encoding: encoding}
	if forbidden && len(scopes) > 1 {
		if f := fs.ready(key, scopes); f != nil {
			if err = use(ctx, f, since); err == nil || !tooWide(err) {
				return f, err
			}
		}
	}
	for _, key.Scope = range scopes {
		var f *fresh.Feed
		if f, err = fs.open(ctx, key, since); err == nil || forbidden && !tooWide(err) {
			return f, err
		}
	}
	return nil, err
}

// ready returns the feed of the first scope whose cache is filled, or nil. It starts the feeds of
// the scopes before, unless upstream has recently refused them.
func (fs *Feeds) ready(key feed.Key, scopes []object.Scope) *fresh.Feed {
	f, at := fs.set.filled(key, scopes)
	for _, key.Scope = range scopes[:at] {
		_, _ = fs.feed(key, time.Now())
	}
	return f
}

// tooWide reports whether the proxy might be allowed to read a narrower scope.
func tooWide(err error) bool {
	return apierrors.IsForbidden(err) && !errors.Is(err, discovery.ErrNotCacheable)
}

// Caches reports, without waiting, whether a read may have a feed. It returns false for excluded
// resources, for resources that were recently missing or not cacheable, and for reads beyond all
// scopes.
func (fs *Feeds) Caches(gvr schema.GroupVersionResource, w object.Want) bool {
	options := fs.shared.Options.Load()
	if options.Excludes(gvr) {
		return false
	}
	scopes, forbidden := candidates(options, gvr, w)
	if fs.set.has(gvr, scopes) {
		return true
	}
	for _, scope := range scopes {
		refused := fs.set.refusal(feed.Key{GVR: gvr, Scope: scope})
		if refused == nil || errors.Is(refused, feed.ErrServedAnew) {
			return !fs.shared.Names.Lacks(gvr)
		}
		if forbidden && !tooWide(refused) {
			return false
		}
	}
	return false
}

// AnswersGets reports, without waiting, whether a feed may answer a get of the most recent state
// (see [fresh.Feed.AnswersGets]).
func (fs *Feeds) AnswersGets(
	gvr schema.GroupVersionResource, w object.Want, encoding object.Encoding,
) bool {
	scopes, forbidden := candidates(fs.shared.Options.Load(), gvr, w)
	if !forbidden {
		scopes = scopes[:min(1, len(scopes))] // Open waits for the narrowest
	}
	f := fs.ready(feed.Key{GVR: gvr, Encoding: encoding}, scopes)
	return f != nil && f.ServesConsistent() && f.Feed.Progress.Serves() && f.AnswersGets()
}
