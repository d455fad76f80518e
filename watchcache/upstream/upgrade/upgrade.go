// Package upgrade compares a cache with what upstream serves now, maybe by another version of the
// apiserver, with other feature gates, or from an aggregated API.
package upgrade

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"reflect"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/watchproxy/watchproxy/watchcache"
	"github.com/watchproxy/watchproxy/watchcache/object"
	"github.com/watchproxy/watchproxy/watchcache/upstream/client"
	"github.com/watchproxy/watchproxy/watchcache/upstream/discovery"
)

var (
	// ErrServedAnew means that upstream has just begun to serve the resource in another way.
	ErrServedAnew = fmt.Errorf("%w: upstream has just begun to serve it in another way", watchcache.ErrNotReady)
	// ErrRewritten means that upstream writes an object with other bytes at the same
	// resourceVersion.
	ErrRewritten = errors.New("the apiserver now writes other bytes")
)

// Final reports whether the cache differs. After other errors, the comparison has to be repeated.
func Final(err error) bool {
	return errors.Is(err, ErrServedAnew) || errors.Is(err, ErrRewritten) || errors.Is(err, discovery.ErrNotCacheable) ||
		errors.Is(err, discovery.ErrNotServed) || apierrors.IsNotFound(err) || apierrors.IsForbidden(err)
}

// Description returns [ErrServedAnew] if upstream serves the resource in another way than before.
func Description(ctx context.Context, names *discovery.Discovery, before discovery.Description, aggregated bool) error {
	r := &before.Resource
	now, _, err := names.Describe(ctx, discovery.Question{GVR: r.GVR, Encoding: r.Encoding, Scope: r.Scope, Aggregated: aggregated, Since: time.Now()})
	if c := &now.Resource.Columns; c.Empty == "" || r.Columns.Empty == "" { // unknown, because there was a row
		c.Empty, r.Columns.Empty = "", ""
	}
	if err == nil && !reflect.DeepEqual(now, before) {
		err = ErrServedAnew
	}
	return err
}

// Compare compares the description and the objects.
func Compare(ctx context.Context, names *discovery.Discovery, before discovery.Description, c *client.Client, cache *watchcache.Cache) error {
	if err := Description(ctx, names, before, false); err != nil {
		return err
	}
	return objects(ctx, c, cache)
}

// objects returns [ErrRewritten] if upstream writes an object with other bytes than the cache has. It
// compares the objects whose versions the cache has, so watches may go on meanwhile. The cells of
// Tables change by themselves, so Tables always count as rewritten.
func objects(ctx context.Context, c *client.Client, cache *watchcache.Cache) error {
	if cache.Resource().Encoding == object.Table {
		return ErrRewritten
	}
	_, err := c.EachPage(ctx, cache, cache.Stats().ResourceVersion, "NotOlderThan", func(o *object.Object) error {
		return sameBytes(cache, o)
	})
	return err
}

// States returns upstream's objects at a resourceVersion. It returns an error if the description or
// bytes of objects have changed. Upstream may write other bytes at the same resourceVersions without
// another version, for example with other feature gates. Rows of Tables and objects of aggregated APIs
// change by themselves, so their bytes are not compared.
func States(ctx context.Context, names *discovery.Discovery, before discovery.Description, aggregated bool,
	c *client.Client, cache *watchcache.Cache, rv uint64,
) (states []object.State, err error) {
	if err := Description(ctx, names, before, aggregated); err != nil {
		return nil, err
	}
	r := cache.Resource()
	if aggregated || r.Encoding == object.Table {
		return c.MetadataAt(ctx, r, rv)
	}
	_, err = c.EachPage(ctx, cache, rv, "Exact", func(o *object.Object) error {
		states = append(states, o.State())
		return sameBytes(cache, o)
	})
	return states, err
}

func sameBytes(cache *watchcache.Cache, o *object.Object) error {
	was, _ := cache.Version(o.Key(), o.ResourceVersion())
	if was != nil && was.UID() == o.UID() && !bytes.Equal(was.Item(), o.Item()) {
		return fmt.Errorf("%w: %s at %d", ErrRewritten, o.Key(), o.ResourceVersion())
	}
	return nil
}
