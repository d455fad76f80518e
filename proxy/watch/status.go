package watch

import (
	"context"
	"errors"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/watchproxy/watchproxy/proxy/exchange"
	"github.com/watchproxy/watchproxy/proxy/grants"
	"github.com/watchproxy/watchproxy/watchcache"
)

// Expired returns the Status of a watch that cannot start at the requested resourceVersion.
func Expired(c *watchcache.Cache, err error) metav1.Status {
	if c.Resource().NoWatchCache {
		return exchange.Expired("The resourceVersion for the provided watch is too old.") // etcd's message
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

// appendEnd writes an ERROR event if a new watch from the client's resourceVersion might succeed
// but miss changes, or would be refused. There are five such cases. A cache that started again may reach that
// resourceVersion by another history. A relist may have skipped changes that this watch cannot
// deliver. The log may have left the watch behind between two deletions of one revision. The client
// may read other namespaces now, or the watch is one that cannot be resumed.
func (w *Watch) appendEnd(out *exchange.ChunkWriter, err error) {
	switch {
	case errors.Is(err, grants.ErrChanged):
	case errors.Is(err, exchange.ErrRevoked): // the client watches again and is refused
		return
	case w.Anew:
		err = errAnew
	case !errors.Is(err, watchcache.ErrTooOld):
		now, gone := w.Cache.Snapshot()
		inside := errors.Is(err, watchcache.ErrLagged) && w.Cache.Resource().NoWatchCache
		if gone != nil || !inside && !errors.Is(err, watchcache.ErrEnded) {
			return
		}
		err = &watchcache.TooOldError{From: w.Start, Oldest: now.ResourceVersion()}
	}
	buf, status := out.Pending(), Expired(w.Cache, err)
	*buf = w.Form.AppendError(*buf, &status)
	_ = out.Flush()
}
