package read

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/watchproxy/watchproxy/proxy/table"
	"github.com/watchproxy/watchproxy/proxy/wire"
	"github.com/watchproxy/watchproxy/watchcache/object"
)

const (
	// rowWait bounds the wait of a list or a get for rows that come later than their objects.
	rowWait = time.Second
	// rowWatchWait does the same for a watch, which ends if the row does not come.
	rowWatchWait = 5 * time.Second
)

// openTable opens the feeds of the objects and of their rows. Both start at the same time.
func (rd *Reader) openTable(ctx context.Context, r *read) (err error) {
	var rows Feed
	var failed error
	var opening sync.WaitGroup
	opening.Go(func() { rows, failed = rd.Feeds.Open(ctx, r.GVR, object.Table, r.since()) })
	r.feed, err = rd.Feeds.Open(ctx, r.GVR, object.JSON, r.since())
	opening.Wait()
	if err = errors.Join(err, failed); err != nil {
		return err
	}
	if rows.Cache().Resource().Encoding != object.Table {
		return Table
	}
	rules := rd.tables.Of(rows.Cache())
	if !rules.Usable() || rules.Sorted && r.kind() == wire.List {
		return Table
	}
	r.rows = &table.Rows{Rules: rules, Cache: rows.Cache(), Context: ctx}
	return nil
}

// again tells whether a read should be tried again because a row was missing. It has waited for the
// row, without a slot.
func (r *read) again(ctx context.Context) bool {
	if r.rows == nil {
		return false
	}
	r.meter.ReleaseSlot()
	r.rows.Context = ctx
	return r.rows.Missed(rowWait)
}

// watchRows prepares the rows for a watch from rv. It fails as a watch of the rows would. The feed of
// the rows goes on until release is called.
func (rd *Reader) watchRows(r *read, rv uint64) (release func(), err error) {
	r.rows.Context, r.rows.Wait = rd.Draining, rowWatchWait
	if r.Bookmarks && r.rows.Cache.Bookmark() == nil {
		return nil, Stale
	}
	return r.rows.Keep(rv)
}
