package table

import (
	"context"
	"errors"
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/fields"

	"github.com/watchproxy/watchproxy/proxy/wire"
	"github.com/watchproxy/watchproxy/watchcache"
	"github.com/watchproxy/watchproxy/watchcache/object"
)

// MissingRowError says that there is no row for an object's version. The feed of the rows may have
// begun after that version, or the row may be late.
type MissingRowError struct {
	Key string
	RV  uint64
}

func (e *MissingRowError) Error() string {
	return fmt.Sprintf("the row of %s at %d is not known", e.Key, e.RV)
}

var errClock = errors.New("this machine's clock may differ from upstream's")

// Slot is a turn of a read, which others may have while the read waits.
type Slot interface{ ReleaseSlot() }

// Rows joins the rows of one read with their objects. It implements wire.Rows.
type Rows struct {
	Rules *Rules
	Cache *watchcache.Cache // of the rows
	// Context and Wait limit the wait for a row that arrives after its object. If Wait is 0, there
	// is no wait and the row is missing.
	Context context.Context //nolint:containedctx // it is the read's
	Wait    time.Duration
	Slot    Slot // is given back before such a wait; nil for none
	failed  bool // a row was missing, or did not belong to its object
	// agesEnd is the end of the last row's last age in the output.
	agesEnd int
	last    *object.Object // the last row appended
	at      uint64         // the resourceVersion at which last is shown
	// validUntil is the time until which the ages written since the last call stay the same.
	validUntil time.Time
}

// Columns implements wire.Rows.
func (r *Rows) Columns() []byte { return r.Cache.Resource().Columns.Definitions }

// Empty implements wire.Rows.
func (r *Rows) Empty() string { return r.Cache.Resource().Columns.Empty }

// AppendBookmarkRow implements wire.Rows.
func (r *Rows) AppendBookmarkRow(dst []byte) []byte {
	return append(dst, r.Cache.Bookmark().Row()...)
}

// AppendBookmarkMetadata implements wire.Rows.
func (r *Rows) AppendBookmarkMetadata(dst []byte, rv uint64, ends bool) []byte {
	return r.Cache.Bookmark().Append(dst, rv, ends)
}

// AppendRow implements wire.Rows.
func (r *Rows) AppendRow(dst []byte, o wire.Object, gone bool) ([]byte, error) {
	row := r.find(o, gone)
	if row == nil && r.Wait > 0 {
		r.AwaitLate(o.ResourceVersion())
		row = r.find(o, gone)
	}
	if row == nil {
		r.failed = true
		return dst, &MissingRowError{o.Key(), o.ResourceVersion()}
	}
	now, right := r.Rules.clock.Now()
	if !right {
		r.failed = true
		return dst, errClock
	}
	text, arrived := row.Row().Text(), row.Row().Rendered()
	dst, agesEnd, lasts, err := r.Rules.appendRow(dst, text, o.Bytes(), arrived, now)
	r.agesEnd, r.last, r.at = agesEnd, row, o.ResourceVersion()
	until := now.Add(lasts)
	if lasts < forever && (r.validUntil.IsZero() || until.Before(r.validUntil)) {
		r.validUntil = until
	}
	r.judge(err)
	return dst, err
}

func (r *Rows) judge(err error) {
	if err != nil {
		r.failed = true
		r.Rules.doubt(r.last, err)
	}
}

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

// Await waits for the rows to reach a resourceVersion. It reports whether they have.
func (r *Rows) Await(ctx context.Context, rv uint64, most time.Duration) (there bool) {
	ctx, cancel := context.WithTimeout(ctx, most)
	defer cancel()
	_, err := r.Cache.WaitFresh(ctx, rv)
	return err == nil
}

// AwaitLate is Await with the limits of the read.
func (r *Rows) AwaitLate(rv uint64) (there bool) {
	if s, err := r.Cache.Snapshot(); err == nil && s.ResourceVersion() >= rv {
		return true
	}
	if r.Slot != nil {
		r.Slot.ReleaseSlot()
	}
	return r.Await(r.Context, rv, r.Wait)
}

// Failed reports whether a row was missing or did not belong to its object.
func (r *Rows) Failed() bool { return r.failed }

// Metadata implements wire.Rows.
func (r *Rows) Metadata(made []byte) ([]byte, error) {
	metadata, err := r.last.At(r.at).Row().Metadata(made) // older if the object left a selection
	r.judge(err)
	return metadata, err
}

// AgesEnd returns the end of the last row's last age in the output. Later bytes never change.
func (r *Rows) AgesEnd() int { return r.agesEnd }

// Keep returns a cursor that keeps the feed of the rows running until it is closed, because a feed
// without readers may stop. It fails in the same cases as a watch from rv.
func (r *Rows) Keep(rv uint64) (*watchcache.Cursor, error) {
	// No object wakes the cursor.
	nobody := fields.OneTermEqualSelector("metadata.name", "watchproxy.dev:none")
	nothing, err := object.NewFilter(r.Cache.Resource(), "", nil, nobody)
	if err != nil {
		return nil, err
	}
	return r.Cache.Watch(nothing, rv)
}

// ValidUntil returns when the rows written since the last call change; zero for never.
func (r *Rows) ValidUntil() (until time.Time) {
	until, r.validUntil = r.validUntil, time.Time{}
	return until
}
