package upstream

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/watchproxy/watchproxy/watchcache"
	"github.com/watchproxy/watchproxy/watchcache/object"
	"github.com/watchproxy/watchproxy/watchcache/upstream/client"
	"github.com/watchproxy/watchproxy/watchcache/upstream/feed"
	"github.com/watchproxy/watchproxy/watchcache/upstream/fresh"
)

// FeedStatus is a summary of one feed.
type FeedStatus struct {
	GVR      schema.GroupVersionResource
	Encoding object.Encoding
	Scope    object.Scope
	Lost     time.Duration // how long the cache may have been out of date; 0 if it is current
	LastSign time.Time
	watchcache.Stats
	Cache *watchcache.Cache
}

// Status returns a summary of each feed, in a stable order.
func (fs *Feeds) Status() []FeedStatus {
	var all []FeedStatus
	for _, f := range fs.set.Started() {
		lost, _ := f.Lost()
		all = append(all, FeedStatus{
			GVR:      f.Feed.GVR,
			Encoding: f.Feed.Encoding,
			Scope:    f.Feed.Scope,
			Lost:     lost,
			LastSign: time.Now().Add(-f.Feed.Signs.Quiet()),
			Stats:    f.Cache().Stats(),
			Cache:    f.Cache(),
		})
	}
	return all
}

// Lost returns for how long a resource's feeds have been unable to reach upstream: 0 without feeds.
func (fs *Feeds) Lost(gvr schema.GroupVersionResource) (age time.Duration) {
	fs.set.mu.Lock()
	defer fs.set.mu.Unlock()
	for key, f := range fs.set.mu.feeds {
		if key.GVR == gvr {
			age = max(age, f.Feed.Signs.Unreachable())
		}
	}
	return age
}

// Metrics contains the feeds' metrics.
type Metrics struct {
	feed    *feed.Metrics
	fresh   *fresh.Metrics
	Client  *client.Metrics
	Servers *client.ServerMetrics
}

// NewMetrics registers the feeds' counters.
func NewMetrics(r prometheus.Registerer) *Metrics {
	return &Metrics{
		feed: feed.NewMetrics(r), fresh: fresh.NewMetrics(r),
		Client: client.NewMetrics(r), Servers: client.NewServerMetrics(r),
	}
}

// Describe implements prometheus.Collector.
func (fs *Feeds) Describe(ch chan<- *prometheus.Desc) { prometheus.DescribeByCollect(fs, ch) }

// Collect implements prometheus.Collector. It reads the feeds' state at each scrape.
func (fs *Feeds) Collect(ch chan<- prometheus.Metric) {
	labels := []string{"group", "version", "resource", "encoding", "scope"}
	for _, f := range fs.Status() {
		r := f.GVR
		values := []string{r.Group, r.Version, r.Resource, f.Encoding.String(), f.Scope.String()}
		show := func(kind prometheus.ValueType, value float64, name, help string) {
			desc := prometheus.NewDesc(name, help, labels, nil)
			ch <- prometheus.MustNewConstMetric(desc, kind, value, values...)
		}
		const gauge, counter = prometheus.GaugeValue, prometheus.CounterValue
		synced := 0.0
		if f.Ready {
			synced = 1
		}
		show(gauge, synced, "watchproxy_feed_synced", "1 if the feed has read its state, else 0.")
		show(gauge, float64(f.Objects), "watchproxy_feed_objects", "Objects in the cache.")
		show(gauge, float64(f.Bytes), "watchproxy_feed_object_bytes",
			"Bytes of the cached objects.")
		show(gauge, float64(f.LastSign.UnixMilli())/1000,
			"watchproxy_feed_last_sign_timestamp_seconds",
			"Unix time of upstream's last event, bookmark or answer on this feed.")
		show(gauge, float64(f.LogBytes), "watchproxy_feed_log_bytes",
			"Bytes that only the event log keeps alive.")
		show(counter, float64(f.Events), "watchproxy_feed_events_total",
			"Events received from upstream since the feed began.")
	}
}
