package upstream

import (
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/watchproxy/watchproxy/watchcache"
	"github.com/watchproxy/watchproxy/watchcache/object"
)

// FeedStatus is a summary of one feed.
type FeedStatus struct {
	GVR      schema.GroupVersionResource
	Encoding object.Encoding
	// Lost is how long the cache may have been out of date; 0 if it is current. Unreachable
	// is how long of that upstream has not answered at all.
	Lost, Unreachable time.Duration
	LastSign          time.Time
	watchcache.Stats
}

// Status returns a summary of each feed, in a stable order.
func (fs *Feeds) Status() []FeedStatus {
	var all []FeedStatus
	for _, f := range fs.list() {
		lost, _ := f.Lost()
		all = append(all, FeedStatus{f.gvr, f.encoding, lost, f.unreachable(), time.Now().Add(-f.quiet()), f.cache.Stats()})
	}
	return all
}
