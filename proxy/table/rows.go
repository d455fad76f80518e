package table

import (
	"context"
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/watchproxy/watchproxy/proxy/wire"
	"github.com/watchproxy/watchproxy/watchcache"
	"github.com/watchproxy/watchproxy/watchcache/filter"
	"github.com/watchproxy/watchproxy/watchcache/object"
)

// ErrNoRow says that the row of an object's version is not known. The feed of the rows may have
// begun after that version, or be late.
var ErrNoRow = errors.New("the row is not known")

// Rows joins the rows of one read with their objects. It implements wire.Rows.
type Rows struct {
	Rules *Rules
	Cache *watchcache.Cache // of the rows
	// Wait bounds the wait for a row whose object came earlier.
	Wait time.Duration
	// agesEnd is the length of what was written up to the last row's last age.
	agesEnd int
	last    *object.Object // the row that was appended last
	at      uint64         // the resourceVersion that it is shown at
	// lasts is until when the ages that were written since the last call of Lasts stay the same.
	lasts time.Time
}

// Columns implements wire.Rows.
func (r *Rows) Columns() []byte { return r.Cache.Resource().Columns.Definitions }

// AppendBookmarkRow implements wire.Rows.
func (r *Rows) AppendBookmarkRow(dst []byte) []byte { return append(dst, r.Cache.Bookmark().Row()...) }

// AppendRow implements wire.Rows.
func (r *Rows) AppendRow(dst []byte, o wire.Object, gone bool) ([]byte, error) {
	row := r.Cache.Version(o.Key(), o.ResourceVersion(), gone)
	if row == nil {
		ctx, cancel := context.WithTimeout(context.Background(), r.Wait)
		_, _ = r.Cache.WaitFresh(ctx, o.ResourceVersion()) // look again in any case
		cancel()
		if row = r.Cache.Version(o.Key(), o.ResourceVersion(), gone); row == nil {
			return dst, fmt.Errorf("%w: %s at %d", ErrNoRow, o.Key(), o.ResourceVersion())
		}
	}
	now := time.Now()
	dst, agesEnd, lasts, err := r.Rules.appendRow(dst, row.Row(), o.Bytes(), row.Rendered(), now)
	r.agesEnd, r.last, r.at = agesEnd, row, o.ResourceVersion()
	if until := now.Add(lasts); lasts < forever && (r.lasts.IsZero() || until.Before(r.lasts)) {
		r.lasts = until
	}
	r.Rules.judge(err)
	return dst, err
}

// Metadata implements wire.Rows.
func (r *Rows) Metadata(made []byte) ([]byte, error) {
	metadata, err := r.last.At(r.at).RowMetadata(made) // the row of an object that left a selection is older
	r.Rules.judge(err)
	return metadata, err
}

// AgesEnd is the length of what was written up to the last row's last age. What follows does not
// change with time.
func (r *Rows) AgesEnd() int { return r.agesEnd }

// Keep keeps the feed of the rows running until release is called. A feed without readers may stop.
func (r *Rows) Keep() (release func(), err error) {
	everything, err := filter.New(r.Cache.Resource(), "", nil, nil)
	if err != nil {
		return nil, err
	}
	cursor, err := r.Cache.Watch(everything, math.MaxInt64) // sees no event
	if err != nil {
		return nil, err
	}
	return cursor.Close, nil
}

// Lasts returns until when the rows that were written since the last call stay the same. It is zero
// if they always do.
func (r *Rows) Lasts() (until time.Time) {
	until, r.lasts = r.lasts, time.Time{}
	return until
}
