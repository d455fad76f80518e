package watch

import (
	"cmp"
	"context"
	"errors"
	"os"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/watchproxy/watchproxy/proxy/exchange"
	"github.com/watchproxy/watchproxy/proxy/grants"
	"github.com/watchproxy/watchproxy/watchcache"
)

// The reasons for which watches end, for metrics.
const (
	endTimeout    = "timeout"     // the client's lifetime or the default lifetime has passed
	endClient     = "client"      // the client has left
	endStalled    = "stalled"     // the client left bytes unread for too long
	endDrain      = "drain"       // the server drains
	endRevoked    = "revoked"     // the client has lost its access
	endRegranted  = "regranted"   // the client may read other namespaces now
	endLeftBehind = "left-behind" // the log has dropped events that the watch needs
	endRestarted  = "restarted"   // the cache has ended or started again
	endGap        = "gap"         // a relist skipped changes that the watch cannot show
	endExpired    = "expired"     // the watch consisted of one ERROR event
	endUnwritable = "unwritable"  // an event cannot be written in the watch's form, or has no room
	endPanic      = "panic"       // no other reason was recorded
)

// errAnew is the error of a watch that ends as others do, but cannot be resumed.
var errAnew = errors.New(
	"a watch of the namespaces that the user may read begins with the state again",
)

// ErrStalled is the error of a write whose bytes the client left unread for too long.
var ErrStalled = errors.New("the client left a watch unread")

var errNoRoom = errors.New("no room")

// unwritableError is the error of an event that cannot be written in the form of its watch.
type unwritableError struct{ error }

func (e *unwritableError) Unwrap() error { return e.error }

var errPanicked = errors.New("an event could not be made because of a panic")

// Reason implements exchange.Stream.
func (w *Watch) Reason() string {
	if w.reason == "" {
		return endPanic
	}
	return w.reason
}

// Broken records a failed write or poll. Only the goroutine that works on the watch may call it.
func (w *Watch) Broken(err error) {
	_, unwritable := errors.AsType[*unwritableError](err)
	if unwritable && w.owner != nil {
		w.owner.Unwritable()
	}
	reason := endClient
	switch {
	case unwritable, errors.Is(err, errNoRoom):
		reason = endUnwritable
	case errors.Is(err, exchange.ErrRevoked):
		reason = endRevoked
	case errors.Is(err, grants.ErrChanged), errors.Is(err, grants.ErrUnreviewed):
		reason = endRegranted
	case errors.Is(err, watchcache.ErrTooOld):
		reason = endGap
	case errors.Is(err, watchcache.ErrLagged):
		reason = endLeftBehind
	case errors.Is(err, watchcache.ErrEnded):
		reason = endRestarted
	case errors.Is(err, context.DeadlineExceeded):
		reason = endTimeout
	case errors.Is(err, os.ErrDeadlineExceeded), errors.Is(err, ErrStalled):
		reason = endStalled
	}
	w.reason = cmp.Or(w.reason, reason)
}

// Expired returns the Status of a watch that cannot start at the requested resourceVersion.
func Expired(c *watchcache.Cache, err error) metav1.Status {
	if c.Resource().NoWatchCache {
		// etcd's message.
		return exchange.Expired("The resourceVersion for the provided watch is too old.")
	}
	return exchange.Expired(err.Error())
}

// OnlyError is a watch that consists of one ERROR event.
type OnlyError struct{ Event []byte }

// Run implements exchange.Stream.
func (e *OnlyError) Run(_ context.Context, out *exchange.ChunkWriter) {
	buf := out.Pending()
	*buf = append(*buf, e.Event...)
	_ = out.Flush() // the watch ends either way
}

// Abandon implements exchange.Stream.
func (*OnlyError) Abandon() {}

// Reason implements exchange.Stream.
func (*OnlyError) Reason() string { return endExpired }
