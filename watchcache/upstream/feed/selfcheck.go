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
	"github.com/watchproxy/watchproxy/watchcache/upstream/client"
	"github.com/watchproxy/watchproxy/watchcache/upstream/discovery"
)

const checkListed = 5

// errDiffers means that the cache differs from upstream at the same resourceVersion. The proxy, or
// a component between it and etcd, has missed a change.
var errDiffers = errors.New("cache differs from upstream")

// errMissed means that objects or their versions differ. A relist shows these differences, so
// watches can continue.
var errMissed = fmt.Errorf("%w: it has missed changes", errDiffers)

// ErrServedAnew means that upstream has just begun to serve the resource in another way.
var ErrServedAnew = fmt.Errorf("%w: upstream has just begun to serve it in another way",
	watchcache.ErrNotReady)

// errRewritten means that upstream writes an object with other bytes at the same resourceVersion.
var errRewritten = errors.New("the apiserver now writes other bytes")

// final reports whether a comparison shows that upstream serves the resource in another way. After
// other errors, the comparison has to be repeated.
func final(err error) bool {
	return errors.Is(err, ErrServedAnew) || errors.Is(err, errRewritten) ||
		errors.Is(err, discovery.ErrNotCacheable) || errors.Is(err, discovery.ErrNotServed) ||
		apierrors.IsNotFound(err) || apierrors.IsForbidden(err)
}

// errInconclusive means that no two states at one resourceVersion were available, because upstream
// or the log has moved on.
var errInconclusive = errors.New("states at one resourceVersion could not be had")

// SelfCheck compares a cache with upstream: from time to time, and when another version of the
// apiserver answers.
type SelfCheck struct {
	*Collection
	writer *Writer
}

// Run compares the description and the cache with upstream at the log's resourceVersion. It logs
// and counts the outcome. If the cache differs, the feed has to read the state again.
func (c *SelfCheck) Run(ctx context.Context) (differs bool, err error) {
	rv, epoch := c.writer.Position()
	if err = c.sameDescription(ctx); err == nil {
		err = c.sameObjects(ctx, rv)
	}
	if _, now := c.writer.Position(); now != epoch {
		err = errInconclusive
	}
	outcome := "same"
	switch {
	case errors.Is(ctx.Err(), context.Canceled):
		return false, err
	case final(err):
		outcome, differs = "changed", true
		c.Log.Warn("self-check: upstream serves the resource in another way now", zap.Error(err))
	case errors.Is(err, errDiffers):
		outcome, differs = "different", true
		c.Log.Error("self-check: cache differs; reading it again", zap.Error(err))
	case err != nil:
		outcome = "inconclusive"
		c.Log.Debug("self-check", zap.Error(err))
	}
	of := c.GVR
	c.Shared.Metrics.Checks.WithLabelValues(of.Group, of.Version, of.Resource, outcome).Inc()
	return differs, err
}

func (c *SelfCheck) sameDescription(ctx context.Context) error {
	before := c.Described
	now, _, err := c.describe(ctx, time.Now(), nil)
	was, is := &before.Resource.Columns, &now.Resource.Columns
	if was.Empty == "" || is.Empty == "" { // unknown, because there was a row
		was.Empty, is.Empty = "", ""
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
func (c *SelfCheck) sameObjects(ctx context.Context, rv uint64) error {
	ours, err := c.writer.cache.SnapshotAt(rv)
	if err != nil {
		return fmt.Errorf("%w: %w", errInconclusive, err)
	}
	var theirs []object.State
	if r := c.writer.cache.Resource(); c.Aggregated || r.Encoding == object.Table {
		theirs, err = c.Shared.Client.MetadataAt(ctx, r, rv)
	} else {
		compare := func(o *object.Object) error {
			theirs = append(theirs, o.State())
			was, at := ours.Get(o.Key()), o.ResourceVersion()
			same := was != nil && was.UID() == o.UID() && was.ResourceVersion() == at
			if same && !bytes.Equal(was.Item(), o.Item()) {
				return fmt.Errorf("%w: %s at %d", errRewritten, o.Key(), at)
			}
			return nil
		}
		_, err = c.Shared.Client.EachPage(ctx, c.writer.cache, rv, "Exact", compare)
	}
	if err != nil {
		return err
	}
	slices.SortFunc(theirs, func(a, b object.State) int { return cmp.Compare(a.Key, b.Key) })
	if wrong, all := ours.Differences(theirs, checkListed); all > 0 {
		return fmt.Errorf("%w at %d of %d objects: %q", errMissed, rv, all, wrong)
	}
	return nil
}

// checkVersion compares the cache with upstream if another version of the apiserver wrote it, and
// cuts the stream if they differ. The stream goes on meanwhile, because a relist would skip events.
func (c *SelfCheck) checkVersion(
	ctx context.Context, epoch uint64, since time.Time, cut context.CancelCauseFunc,
) {
	for backoff := client.Reconnect; client.Sleep(ctx, max(checkAfter, backoff.Step())); {
		if !c.askVersion(ctx, AskTimeout, since) {
			return
		}
		endTurn, err := c.Shared.Health.Turn(ctx)
		if err != nil {
			return
		}
		differs, err := true, errRewritten // the self-check does not compare cells
		if c.Encoding != object.Table {
			differs, err = c.Run(ctx)
		}
		endTurn()
		if apierrors.IsResourceExpired(err) { // no state that could be compared is left
			differs, err = true, errRewritten
		}
		switch {
		case err == nil:
			c.writer.sameState(epoch)
			return
		case differs:
			cut(err)
			return
		}
	}
}

// askVersion reads the apiserver's version as of since or later. It reports whether another version
// wrote the cached state. After an error, the next stream asks again.
func (c *SelfCheck) askVersion(ctx context.Context, most time.Duration, since time.Time) bool {
	if c.Aggregated {
		return false // another server writes the objects
	}
	ctx, cancel := context.WithTimeout(ctx, most)
	defer cancel()
	server, err := c.Shared.Client.ServerVersion(ctx, since)
	if err != nil {
		c.Log.Debug("upstream does not tell its version", zap.Error(err))
		return false
	}
	return c.writer.noteVersion(server)
}

const (
	versionWait = time.Second // limits how long a state waits for the version
	// versionShared is how old the version may be. A newer state is compared again with the next
	// stream. checkAfter delays the question of a stream, so that streams share an answer.
	versionShared, checkAfter = time.Second, time.Second
)
