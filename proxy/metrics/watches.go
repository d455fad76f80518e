package metrics

import (
	"sync"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"

	"github.com/watchproxy/watchproxy/proxy/exchange"
	"github.com/watchproxy/watchproxy/proxy/watch"
)

type watches struct {
	open *prometheus.GaugeVec
	ends *prometheus.CounterVec
	lags *lags
}

// newWatches returns the metrics of watches. Their bytes are added to bytes at each scrape.
func newWatches(auto promauto.Factory, bytes *prometheus.CounterVec) watches {
	resource := []string{"group", "version", "resource"}
	return watches{
		open: auto.NewGaugeVec(prometheus.GaugeOpts{
			Name: "watchproxy_watches",
			Help: "Open watches served from the cache.",
		}, resource),
		ends: auto.NewCounterVec(prometheus.CounterOpts{
			Name: "watchproxy_watch_ends_total",
			Help: "Ends of watches from the cache, by resource and reason: timeout (the client's " +
				"or the usual lifetime), client (it left), stalled (it left bytes unread), " +
				"drain, revoked (access was lost), regranted (the client may read other " +
				"namespaces now), left-behind (the event log has dropped events that it needs), " +
				"restarted (the cache ended or began anew), gap (a relist skipped changes that " +
				"it cannot show), expired (it began with an ERROR), unwritable (an event has no " +
				"such form, or no room), panic.",
		}, append(resource, "reason")),
		lags: &lags{
			lag: prometheus.NewDesc("watchproxy_watch_delivery_lag_seconds",
				"Seconds from the arrival of an event from upstream until it was written to the "+
					"connection of a watch that was open, by resource and client "+
					"(prompt, slow: it waited because the client had not read earlier bytes).",
				append(resource, "client"), nil),
			bytes: bytes,
		},
	}
}

// OpenWatch is a watch that is counted as open.
type OpenWatch struct {
	metrics *Metrics
	gvr     [3]string
}

// WatchOpened counts an open watch until it has ended.
func (m *Metrics) WatchOpened(rt exchange.Route) OpenWatch {
	gvr := [3]string{rt.GVR.Group, rt.GVR.Version, rt.GVR.Resource}
	gvr = m.known.admit(gvr, rt, exchange.FromCache)
	m.watches.open.WithLabelValues(gvr[:]...).Inc()
	return OpenWatch{m, gvr}
}

// Ended must be called when the watch has ended. reason says why.
func (w OpenWatch) Ended(reason string) {
	w.metrics.watches.open.WithLabelValues(w.gvr[:]...).Dec()
	w.metrics.watches.ends.WithLabelValues(w.gvr[0], w.gvr[1], w.gvr[2], reason).Inc()
}

// Lag returns the counts of a resource's delivery lags.
func (m *Metrics) Lag(rt exchange.Route) *watch.Lag {
	gvr := [3]string{rt.GVR.Group, rt.GVR.Version, rt.GVR.Resource}
	gvr = m.known.admit(gvr, rt, exchange.FromCache)
	return m.watches.lags.of(gvr)
}

// lags are the delivery lags of all resources. Their number is bounded by names.
type lags struct {
	lag   *prometheus.Desc
	bytes *prometheus.CounterVec // of all responses
	mu    struct {
		sync.Mutex
		of map[[3]string]*watch.Lag
	}
}

func (l *lags) of(gvr [3]string) *watch.Lag {
	l.mu.Lock()
	defer l.mu.Unlock()
	lag := l.mu.of[gvr]
	if lag == nil {
		lag = new(watch.Lag)
		l.mu.of[gvr] = lag
	}
	return lag
}

func (l *lags) Describe(ch chan<- *prometheus.Desc) {
	ch <- l.lag
	l.bytes.Describe(ch)
}

func (l *lags) Collect(ch chan<- prometheus.Metric) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for gvr, lag := range l.mu.of {
		clients := map[string]*watch.LagCounts{"prompt": &lag.Prompt, "slow": &lag.Slow}
		for client, counts := range clients {
			count, seconds, within := counts.Totals()
			labels := append(gvr[:], client)
			ch <- prometheus.MustNewConstHistogram(l.lag, count, seconds, within, labels...)
		}
		bytes := l.bytes.WithLabelValues("watch", gvr[0], gvr[1], gvr[2],
			string(exchange.FromCache))
		bytes.Add(float64(lag.Bytes.Swap(0)))
	}
	l.bytes.Collect(ch)
}
