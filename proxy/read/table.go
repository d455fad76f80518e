package read

import (
	"context"
	"errors"
	"time"

	"github.com/watchproxy/watchproxy/proxy/table"
	"github.com/watchproxy/watchproxy/proxy/watch"
	"github.com/watchproxy/watchproxy/proxy/wire"
	"github.com/watchproxy/watchproxy/watchcache"
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
	opened := make(chan struct{})
	go func() {
		defer close(opened)
		rows, failed = rd.Feeds.Open(ctx, r.GVR, object.Table, 0)
	}()
	r.feed, err = rd.Feeds.Open(ctx, r.GVR, object.JSON, r.since())
	<-opened
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
	r.rows = &table.Rows{Rules: rules, Cache: rows.Cache(), Wait: rowWait}
	return nil
}

// watchRows prepares the rows for a watch. It fails if the watch begins before their history, or if
// the form of a bookmark's row is not known.
func (r *read) watchRows() error {
	r.rows.Wait = rowWatchWait
	since := r.rows.Cache.Stats().Since
	switch {
	case r.rows.Cache.Bookmark() == nil:
		return Stale
	case r.withState() || r.RV == 0 || r.RV >= since:
		return nil
	}
	r.tooEarly = r.errorEvent(watch.Expired(r.cache, &watchcache.TooOldError{From: r.RV, Oldest: since}))
	return Early
}
