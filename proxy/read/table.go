package read

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/watchproxy/watchproxy/proxy/exchange"
	"github.com/watchproxy/watchproxy/proxy/table"
	"github.com/watchproxy/watchproxy/watchcache"
	"github.com/watchproxy/watchproxy/watchcache/object"
)

const (
	// rowWait limits the wait of a get or a list for rows that arrive later than their objects.
	rowWait = time.Second
	// rowWatchWait limits the same wait of a watch, which ends if the row does not arrive.
	rowWatchWait = 5 * time.Second
)

func (rd *Reader) openTable(ctx context.Context, p *plan) (objects Feed, _ *table.Rows, err error) {
	rows, failed := Feed(nil), error(nil)
	var opening sync.WaitGroup
	opening.Go(func() {
		rows, failed = rd.Feeds.Open(ctx, p.GVR, p.want(), object.Table, p.Since(p.Name))
	})
	objects, err = rd.Feeds.Open(ctx, p.GVR, p.want(), object.JSON, p.Since(p.Name))
	opening.Wait()
	if err = errors.Join(err, failed); err != nil {
		return nil, nil, err
	}
	if rows.Cache().Resource().Encoding != object.Table {
		return nil, nil, OtherTable
	}
	rules := rd.tables.Of(rows.Cache())
	if !rules.Usable() {
		return nil, nil, OtherTable
	}
	return objects, &table.Rows{Rules: rules, Cache: rows.Cache()}, nil
}

// retried waits for a missing row, without a slot, and tries the read again. If a row is missing
// again, the read fails with Stale.
func (r *read) retried(
	ctx context.Context, err error, try func(context.Context) (*exchange.Response, error),
) (*exchange.Response, error) {
	missing, ok := errors.AsType[*table.MissingRowError](err)
	if !ok {
		return nil, err
	}
	r.meter.ReleaseSlot()
	r.rows.Await(ctx, missing.RV, rowWait)
	resp, err := try(ctx)
	if _, again := errors.AsType[*table.MissingRowError](err); again {
		return nil, Stale
	}
	return resp, err
}

// watchRows prepares the rows for a watch from rv. The cursor keeps the feed of the rows running
// until it is closed.
func (rd *Reader) watchRows(r *read, rv uint64) (*watchcache.Cursor, error) {
	r.rows.Context, r.rows.Wait, r.rows.Slot = rd.Life.Draining(), rowWatchWait, &r.meter
	if r.Bookmarks && r.rows.Cache.Bookmark() == nil {
		return nil, Stale
	}
	return r.rows.Keep(rv)
}
