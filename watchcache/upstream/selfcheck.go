package upstream

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/url"
	"strconv"
	"time"

	"go.uber.org/zap"

	"github.com/watchproxy/watchproxy/watchcache"
	"github.com/watchproxy/watchproxy/watchcache/age"
	"github.com/watchproxy/watchproxy/watchcache/object"
	"github.com/watchproxy/watchproxy/watchcache/upstream/client"
	"github.com/watchproxy/watchproxy/watchcache/upstream/feed"
	"github.com/watchproxy/watchproxy/watchcache/upstream/fresh"
	"github.com/watchproxy/watchproxy/watchcache/upstream/upgrade"
)

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

// check compares a feed with upstream. If the two differ, the feed reads the state again.
func (fs *Feeds) check(f *fresh.Feed) {
	if stats := f.Cache().Stats(); !stats.Ready {
		return
	}
	outcome := "same"
	err := f.SelfCheck(fs.ctx)
	if err == nil && f.Encoding == object.Table {
		err = checkRows(fs.ctx, f)
	}
	switch {
	case fs.ctx.Err() != nil:
		return
	case upgrade.Final(err):
		outcome = "changed"
		f.Log.Warn("self-check: upstream serves the resource in another way now", zap.Error(err))
		f.Interrupt(err)
	case errors.Is(err, feed.ErrDiffers):
		outcome = "different"
		f.Log.Error("self-check: cache differs; reading it again", zap.Error(err))
		f.Interrupt(err)
	case err != nil:
		outcome = "inconclusive"
		f.Log.Debug("self-check", zap.Error(err))
	}
	fs.metrics.checks.WithLabelValues(f.GVR.Group, f.GVR.Version, f.GVR.Resource, outcome).Inc()
}

const (
	// checkedRows is the number of rows of a Table whose cells are compared.
	checkedRows = 500
	// rowsTimeout limits the duration of this comparison.
	rowsTimeout = time.Minute
)

// checkRows compares the cells of checkedRows rows of a Table with upstream's cells at the log's
// resourceVersion. The rows begin anywhere, so each row is compared sooner or later. checkRows
// detects cells that change without a change of the object, except ages. Ages are checked whenever
// a row is written.
func checkRows(ctx context.Context, f *fresh.Feed) error {
	ctx, cancel := context.WithTimeout(ctx, rowsTimeout)
	defer cancel()
	rv, _ := f.Position()
	ours, err := f.Cache().SnapshotAt(rv)
	if err != nil {
		return err
	}
	query := pageOf(ours, rand.N(max(1, ours.Len()-checkedRows+1)))
	var differs error
	page, err := f.Client.Page(ctx, f.Cache().Resource(), query, func(row *object.Object) error {
		differs = cmp.Or(differs, rowDiffers(ours, row))
		return nil
	})
	if errors.Is(err, object.ErrColumns) {
		return fmt.Errorf("%w: %w", feed.ErrDiffers, err)
	}
	if err != nil {
		return err
	}
	if page.RV != rv {
		return client.ListedAt(page.RV, rv)
	}
	return differs
}

// pageOf returns the query for checkedRows rows of a state, without the first rows.
func pageOf(s watchcache.Snapshot, without int) url.Values {
	query, at := client.At(s.ResourceVersion(), "Exact"), 0
	for o := range s.Objects("", "") {
		if at++; at == without {
			query = url.Values{"continue": {object.EncodeToken(o.Key()+"\x00", s.ResourceVersion())}}
		}
		if at >= without {
			break
		}
	}
	query.Set("limit", strconv.Itoa(checkedRows))
	return query
}

// rowDiffers compares the cells of a row of upstream with the cached cells.
func rowDiffers(ours watchcache.Snapshot, theirs *object.Object) error {
	row := ours.Get(theirs.Key())
	if row == nil || row.UID() != theirs.UID() || row.ResourceVersion() != theirs.ResourceVersion() {
		return fmt.Errorf("%w: the row of %s is not cached", feed.ErrDiffers, theirs.Key())
	}
	if !age.SameCells(row.Row(), theirs.Row()) {
		return fmt.Errorf("%w: the row of %s is %s, cached %s", feed.ErrDiffers, theirs.Key(), theirs.Row(), row.Row())
	}
	return nil
}
