package table

import (
	"context"
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/fields"

	"github.com/watchproxy/watchproxy/proxy/wire"
	"github.com/watchproxy/watchproxy/watchcache"
	"github.com/watchproxy/watchproxy/watchcache/filter"
	"github.com/watchproxy/watchproxy/watchcache/object"
)

// MissingRowError says that the row of an object's version is not known. The feed of the rows may
// have begun after that version, or be late.
type MissingRowError struct {
	Key string
	RV  uint64
}

func (e *MissingRowError) Error() string {
	return fmt.Sprintf("the row of %s at %d is not known", e.Key, e.RV)
}

// Rows joins the rows of one read with their objects. It implements wire.Rows.
type Rows struct {
	Rules *Rules
	Cache *watchcache.Cache // of the rows
	// Context and Wait bound the wait for a row whose object came earlier. Without a Wait, such a
	// row is missing.
	Context context.Context //nolint:containedctx // it is the read's
	Wait    time.Duration
	failed  bool // a row was missing, or did not fit its object
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
	row := r.find(o, gone)
	if row == nil && r.Wait > 0 {
		r.Await(r.Context, o.ResourceVersion(), r.Wait)
		row = r.find(o, gone)
	}
	if row == nil {
		r.failed = true
		return dst, &MissingRowError{o.Key(), o.ResourceVersion()}
	}
	now := time.Now().Round(0) // the monotonic clock stops while a machine sleeps
	dst, agesEnd, lasts, err := r.Rules.appendRow(dst, row.Row(), o.Bytes(), row.Rendered(), now)
	r.agesEnd, r.last, r.at = agesEnd, row, o.ResourceVersion()
	if until := now.Add(lasts); lasts < forever && (r.lasts.IsZero() || until.Before(r.lasts)) {
		r.lasts = until
	}
	r.failed = r.failed || err != nil
	r.Rules.judge(o.Key(), err)
	return dst, err
}

// find returns the row of an object, or nil. A row of another epoch may belong to another history.
func (r *Rows) find(o wire.Object, gone bool) (row *object.Object) {
	var epoch uint64
	if gone && o.Written() == o.ResourceVersion() {
		row, epoch = r.Cache.Last(o.Key(), o.ResourceVersion())
	} else { // an object that left a selection is shown with its previous content
		row, epoch = r.Cache.Version(o.Key(), o.Written())
	}
	if row == nil || epoch != r.Rules.epoch || row.UID() != o.UID() {
		return nil
	}
	return row
}

// Await waits for the rows to reach a resourceVersion.
func (r *Rows) Await(ctx context.Context, rv uint64, most time.Duration) {
	ctx, cancel := context.WithTimeout(ctx, most)
	defer cancel()
	_, _ = r.Cache.WaitFresh(ctx, rv) // the caller looks again in any case
}

// Failed tells whether a row was missing or did not fit its object.
func (r *Rows) Failed() bool { return r.failed }

// Metadata implements wire.Rows.
func (r *Rows) Metadata(made []byte) ([]byte, error) {
	metadata, err := r.last.At(r.at).RowMetadata(made) // the row of an object that left a selection is older
	r.failed = r.failed || err != nil
	r.Rules.judge(r.last.Key(), err)
	return metadata, err
}

// AgesEnd is the length of what was written up to the last row's last age. What follows does not
// change with time.
func (r *Rows) AgesEnd() int { return r.agesEnd }

// Keep keeps the feed of the rows running until release is called; a feed without readers may stop.
// It fails as a watch from rv would.
func (r *Rows) Keep(rv uint64) (release func(), err error) {
	nobody := fields.OneTermEqualSelector("metadata.name", "watchproxy.dev:none") // no object wakes the cursor
	nothing, err := filter.New(r.Cache.Resource(), "", nil, nobody)
	if err != nil {
		return nil, err
	}
	cursor, err := r.Cache.Watch(nothing, rv)
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
