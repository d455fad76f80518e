package watch

import (
	"context"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/watchproxy/watchproxy/proxy/exchange"
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
