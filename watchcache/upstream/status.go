package upstream

import (
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/watchproxy/watchproxy/watchcache"
)

// FeedStatus is one feed at a glance.
type FeedStatus struct {
	GVR      schema.GroupVersionResource
	Encoding watchcache.Encoding
	Lost     time.Duration // for how long upstream could not be reached; 0 while it can
	LastSign time.Time
	watchcache.Stats
}

// Status returns the feeds at a glance, in a stable order.
func (fs *Feeds) Status() []FeedStatus {
	var all []FeedStatus
	for _, f := range fs.list() {
		lost, _ := f.Lost()
		all = append(all, FeedStatus{f.gvr, f.encoding, lost, time.Now().Add(-f.quiet()), f.cache.Stats()})
	}
	return all
}
