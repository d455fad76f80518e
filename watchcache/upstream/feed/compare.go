package feed

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"time"

	"go.uber.org/zap"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/watchproxy/watchproxy/watchcache"
	"github.com/watchproxy/watchproxy/watchcache/object"
	"github.com/watchproxy/watchproxy/watchcache/upstream/discovery"
)

// checkShown is the maximum number of differences in the log message.
const checkShown = 5

// errDiffers means that the cache differs from upstream at the same resourceVersion. The proxy, or
// a component between it and etcd, has missed a change.
var errDiffers = errors.New("cache differs from upstream")

// errMissed means that objects or their versions differ. A relist shows these differences, so
// watches can continue.
var errMissed = fmt.Errorf("%w: it has missed changes", errDiffers)

// ErrServedAnew means that upstream has just begun to serve the resource in another way.
var ErrServedAnew = fmt.Errorf("%w: upstream has just begun to serve it in another way", watchcache.ErrNotReady)

// errRewritten means that upstream writes an object with other bytes at the same resourceVersion.
var errRewritten = errors.New("the apiserver now writes other bytes")

// final reports whether a comparison shows that upstream serves the resource in another way. After
// other errors, the comparison has to be repeated.
func final(err error) bool {
	return errors.Is(err, ErrServedAnew) || errors.Is(err, errRewritten) || errors.Is(err, discovery.ErrNotCacheable) ||
		errors.Is(err, discovery.ErrNotServed) || apierrors.IsNotFound(err) || apierrors.IsForbidden(err)
}

// errInconclusive means that no two states at one resourceVersion were available, because upstream
// or the log has moved on.
var errInconclusive = errors.New("states at one resourceVersion could not be had")

// SelfCheck compares the description and the cache with upstream at the log's resourceVersion. It
// logs and counts the outcome. If the cache differs, the feed has to read the state again.
func (f *Feed) SelfCheck(ctx context.Context) (differs bool, err error) {
	rv, epoch := f.Position()
	if err = f.sameDescription(ctx); err == nil {
		err = f.sameObjects(ctx, rv)
	}
	if _, now := f.Position(); now != epoch {
		err = errInconclusive
	}
	outcome := "same"
	switch {
	case errors.Is(ctx.Err(), context.Canceled):
		return false, err
	case final(err):
		outcome, differs = "changed", true
		f.Log.Warn("self-check: upstream serves the resource in another way now", zap.Error(err))
	case errors.Is(err, errDiffers):
		outcome, differs = "different", true
		f.Log.Error("self-check: cache differs; reading it again", zap.Error(err))
	case err != nil:
		outcome = "inconclusive"
		f.Log.Debug("self-check", zap.Error(err))
	}
	f.Shared.Metrics.Checks.WithLabelValues(f.GVR.Group, f.GVR.Version, f.GVR.Resource, outcome).Inc()
	return differs, err
}

// sameDescription returns [ErrServedAnew] if upstream serves the resource in another way than before.
func (f *Feed) sameDescription(ctx context.Context) error {
	before := f.described
	r := &before.Resource
	now, _, err := f.Shared.Names.Describe(ctx, discovery.Question{
		GVR: r.GVR, Encoding: r.Encoding, Scope: r.Scope, Aggregated: f.Aggregated, Since: time.Now(),
	})
	if c := &now.Resource.Columns; c.Empty == "" || r.Columns.Empty == "" { // unknown, because there was a row
		c.Empty, r.Columns.Empty = "", ""
	}
	if err == nil && !reflect.DeepEqual(now, before) {
		err = ErrServedAnew
	}
	return err
}

// sameObjects compares the cache with upstream's state at a resourceVersion: the keys, uids and
// resourceVersions of all objects, and their bytes. Upstream may write other bytes at the same
// resourceVersions in another version, or with other feature gates. Rows of Tables and objects of
// aggregated APIs change by themselves, so their bytes are not compared.
func (f *Feed) sameObjects(ctx context.Context, rv uint64) error {
	ours, err := f.cache.SnapshotAt(rv)
	if err != nil {
		return fmt.Errorf("%w: %w", errInconclusive, err)
	}
	var theirs []object.State
	if r := f.cache.Resource(); f.Aggregated || r.Encoding == object.Table {
		theirs, err = f.Shared.Client.MetadataAt(ctx, r, rv)
	} else {
		_, err = f.Shared.Client.EachPage(ctx, f.cache, rv, "Exact", func(o *object.Object) error {
			theirs = append(theirs, o.State())
			was := ours.Get(o.Key())
			same := was != nil && was.UID() == o.UID() && was.ResourceVersion() == o.ResourceVersion()
			if same && !bytes.Equal(was.Item(), o.Item()) {
				return fmt.Errorf("%w: %s at %d", errRewritten, o.Key(), o.ResourceVersion())
			}
			return nil
		})
	}
	if err != nil {
		return err
	}
	slices.SortFunc(theirs, func(a, b object.State) int { return cmp.Compare(a.Key, b.Key) })
	if wrong, all := ours.Differences(theirs, checkShown); all > 0 {
		return fmt.Errorf("%w at %d of %d objects: %q", errMissed, rv, all, wrong)
	}
	return nil
}

// Confirm compares the log's newest state with upstream's state at rv or later. If they are equal,
// readers get the cached state with upstream's resourceVersion. Confirm reports whether they are
// equal.
func (f *Feed) Confirm(ctx context.Context, rv uint64) (same bool, err error) {
	_, epoch := f.Position()
	list, err := f.Shared.Client.Metadata(ctx, f.cache.Resource(), rv)
	if err != nil {
		return false, err
	}
	err = f.Write(epoch, func() error {
		same = f.cache.Confirm(list.States, list.RV)
		return nil
	})
	return same, err
}
