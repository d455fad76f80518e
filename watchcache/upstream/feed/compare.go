package feed

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/watchproxy/watchproxy/watchcache/object"
	"github.com/watchproxy/watchproxy/watchcache/upstream/upgrade"
)

const (
	// checkLimit limits the duration of a self-check.
	checkLimit = time.Minute
	// checkShown is the maximum number of differences in the log message.
	checkShown = 5
)

// ErrDiffers means that the cache differs from upstream at the same resourceVersion. The proxy, or
// a component between it and etcd, has missed a change.
var ErrDiffers = errors.New("cache differs from upstream")

// errMissed means that objects or their versions differ. A relist shows these differences, so
// watches can continue.
var errMissed = fmt.Errorf("%w: it has missed changes", ErrDiffers)

// errInconclusive means that no two states at one resourceVersion were available, because upstream
// or the log has moved on.
var errInconclusive = errors.New("states at one resourceVersion could not be had")

// differs compares the cache with upstream's state at a resourceVersion. It compares the keys, uids
// and resourceVersions of all objects.
func (f *Feed) differs(rv uint64, theirs []object.State) error {
	ours, err := f.cache.SnapshotAt(rv)
	if err != nil {
		return fmt.Errorf("%w: %w", errInconclusive, err)
	}
	slices.SortFunc(theirs, func(a, b object.State) int { return cmp.Compare(a.Key, b.Key) })
	if wrong, all := ours.Differences(theirs, checkShown); all > 0 {
		return fmt.Errorf("%w at %d of %d objects: %q", errMissed, rv, all, wrong)
	}
	return nil
}

// SelfCheck compares the description and the cache with upstream at the log's resourceVersion.
func (f *Feed) SelfCheck(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, checkLimit)
	defer cancel()
	rv, epoch := f.Position()
	theirs, err := upgrade.States(ctx, f.Names, f.described, f.Aggregated, f.Client, f.cache, rv)
	if err == nil {
		err = f.differs(rv, theirs)
	}
	if _, now := f.Position(); now != epoch {
		return errInconclusive
	}
	return err
}

// Confirm compares the log's newest state with upstream's state at rv or later. If they are equal,
// readers get the cached state with upstream's resourceVersion. Confirm reports whether they are
// equal.
func (f *Feed) Confirm(ctx context.Context, rv uint64) (same bool, err error) {
	_, epoch := f.Position()
	list, err := f.Client.Metadata(ctx, f.cache.Resource(), rv)
	if err != nil {
		return false, err
	}
	err = f.Write(epoch, func() error {
		same = f.cache.Confirm(list.States, list.RV)
		return nil
	})
	return same, err
}
