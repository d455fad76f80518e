package upstream

import (
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/watchproxy/watchproxy/watchcache"
	"github.com/watchproxy/watchproxy/watchcache/object"
)

// FeedStatus is one feed at a glance.
type FeedStatus struct {
	GVR      schema.GroupVersionResource
	Encoding object.Encoding
	// Lost is how long what the cache holds may have been out of date; 0 if it is not. Unreachable
	// is the part of it for which upstream has not even refused anything.
	Lost, Unreachable time.Duration
	LastSign          time.Time
	watchcache.Stats
}

// Status returns the feeds at a glance, in a stable order.
func (fs *Feeds) Status() []FeedStatus {
	var all []FeedStatus
	for _, f := range fs.list() {
		lost, _ := f.Lost()
		all = append(all, FeedStatus{f.gvr, f.encoding, lost, f.unreachable(), time.Now().Add(-f.quiet()), f.cache.Stats()})
	}
	return all
}
