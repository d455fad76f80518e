package upstream

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/url"
	"slices"
	"strconv"
	"time"

	"go.uber.org/zap"

	"github.com/watchproxy/watchproxy/watchcache/object"
	"github.com/watchproxy/watchproxy/watchcache/upstream/client"
)

const (
	// checkPage is how many objects' metadata one request lists, checkLimit how long the whole list
	// may take.
	checkPage  = 5000
	checkLimit = time.Minute
	// checkShown is how many differences are logged.
	checkShown = 5
)

// errDiffers says that the cache differs from upstream at the same
// resourceVersion: the proxy or something before it missed a change.
var errDiffers = errors.New("cache differs from upstream")

// errInconclusive says that nothing could be compared: upstream or the log has moved on.
var errInconclusive = errors.New("states at one resourceVersion could not be had")

// selfCheck compares keys, uids and resourceVersions of all objects with upstream's at the
// log's resourceVersion.
func (f *Feed) selfCheck(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, checkLimit)
	defer cancel()
	rv, epoch := f.standing()
	theirs, err := f.statesAt(ctx, rv)
	if err != nil {
		return err
	}
	ours, err := f.cache.SnapshotAt(rv)
	if _, now := f.standing(); err != nil || now != epoch {
		return fmt.Errorf("%w: %w", errInconclusive, err)
	}
	var wrong []string
	for o := range ours.Objects("", "") {
		is, ok := theirs[o.Key()]
		switch delete(theirs, o.Key()); {
		case !ok:
			wrong = append(wrong, o.Key()+" is not there")
		case is.UID != o.UID() || is.ResourceVersion != o.ResourceVersion():
			wrong = append(wrong, fmt.Sprintf("%s is %s at %d, cached %s at %d", o.Key(), is.UID, is.ResourceVersion, o.UID(), o.ResourceVersion()))
		}
	}
	for _, key := range slices.Sorted(maps.Keys(theirs)) {
		wrong = append(wrong, key+" is not cached")
	}
	if len(wrong) == 0 {
		return nil
	}
	return fmt.Errorf("%w at %d in %d objects: %q", errDiffers, rv, len(wrong), wrong[:min(len(wrong), checkShown)])
}

// statesAt lists the metadata of all objects at a resourceVersion, by key.
func (f *Feed) statesAt(ctx context.Context, rv uint64) (map[string]object.State, error) {
	states := map[string]object.State{}
	query := url.Values{
		"limit": {strconv.Itoa(checkPage)}, "resourceVersion": {strconv.FormatUint(rv, 10)}, "resourceVersionMatch": {"Exact"},
	}
	for {
		list, err := f.client.MetadataBy(ctx, f.cache.Resource(), query)
		switch {
		case err != nil:
			return nil, err
		case list.RV != rv:
			return nil, fmt.Errorf("%w: asked for %d, got %d", errInconclusive, rv, list.RV)
		}
		for _, state := range list.States {
			states[state.Key] = state
		}
		if list.Next == "" {
			return states, nil
		}
		query = url.Values{"limit": {strconv.Itoa(checkPage)}, "continue": {list.Next}}
	}
}

// checkAll compares all feeds with upstream, one after another, once per interval.
func (fs *Feeds) checkAll(interval time.Duration) {
	for {
		feeds := fs.list()
		pause := interval / time.Duration(len(feeds)+1)
		if !client.Sleep(fs.ctx, pause/2+rand.N(pause+1)) {
			return
		}
		for _, f := range feeds {
			fs.check(f)
			if !client.Sleep(fs.ctx, pause/2+rand.N(pause+1)) {
				return
			}
		}
	}
}

// check compares a feed with upstream. A feed that differs starts anew.
func (fs *Feeds) check(f *Feed) {
	if stats := f.cache.Stats(); !stats.Ready {
		return
	}
	outcome := "same"
	switch err := f.selfCheck(fs.ctx); {
	case fs.ctx.Err() != nil:
		return
	case errors.Is(err, errDiffers):
		outcome = "different"
		f.log.Error("self-check: cache differs; reading it again", zap.Error(err))
		f.interrupt(err)
	case err != nil:
		outcome = "inconclusive"
		f.log.Debug("self-check", zap.Error(err))
	}
	fs.metrics.checks.WithLabelValues(f.gvr.Group, f.gvr.Version, f.gvr.Resource, outcome).Inc()
}
