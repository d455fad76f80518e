package upstream

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/watchproxy/watchproxy/watchcache/upstream/client"
	"github.com/watchproxy/watchproxy/watchcache/upstream/servers"
)

// Metrics count the requests of feeds to upstream.
type Metrics struct {
	relists  *prometheus.CounterVec
	runs     *prometheus.CounterVec
	readers  *prometheus.HistogramVec
	seconds  *prometheus.HistogramVec
	cost     *prometheus.CounterVec
	saved    prometheus.Counter
	saves    *prometheus.CounterVec
	restores *prometheus.CounterVec
	checks   *prometheus.CounterVec
	// Client counts requests, Servers is about upstream's servers.
	Client  *client.Metrics
	Servers *servers.Metrics
}

var resourceLabels = []string{"group", "version", "resource"}

// NewMetrics registers the feeds' counters.
func NewMetrics(r prometheus.Registerer) *Metrics {
	m := &Metrics{
		Client:  client.NewMetrics(r),
		Servers: servers.NewMetrics(r),
		relists: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "watchproxy_feed_relists_total",
			Help: "Relists of a feed, by reason.",
		}, append(resourceLabels, "reason")),
		runs: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "watchproxy_freshness_runs_total",
			Help: "Runs that bring a cache up to date for consistent reads, by outcome: current (it already was), stream (the watch did it), ledger (all later revisions belong to other resources), " +
				"list (fast-forwarded), metadata (nothing had happened), side-watch, shared (the run before did it), moved (others had written; the run only checked), failed (the readers were forwarded).",
		}, append(resourceLabels, "outcome")),
		readers: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name:    "watchproxy_freshness_run_readers",
			Help:    "Readers that shared a freshness run.",
			Buckets: prometheus.ExponentialBuckets(1, 4, 7),
		}, resourceLabels),
		seconds: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "watchproxy_freshness_seconds",
			Help: "Seconds that a consistent read waited until the cache was known to be up to date, by the outcome of its freshness run; " +
				"max-age: a recent state was allowed; direct: upstream answered, because it is faster.",
			Buckets: prometheus.ExponentialBuckets(0.0005, 2.5, 12),
		}, []string{"outcome"}),
	}
	m.cost = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "watchproxy_freshness_upstream_seconds_total",
		Help: "Seconds that upstream took for freshness checks (probe, list, metadata; not side watches, which mostly wait) and for consistent reads left to it (direct).",
	}, []string{"by"})
	m.saved = prometheus.NewCounter(prometheus.CounterOpts{
		Name: "watchproxy_freshness_saved_seconds_total",
		Help: "Estimated seconds that upstream would have taken for the lists of the most recent state that caches answered after a freshness run, from its times for lists of similar size or an average.",
	})
	m.saves = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "watchproxy_cache_saves_total",
		Help: "Caches written to the directory of saved caches, by outcome: saved, failed.",
	}, []string{"outcome"})
	m.restores = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "watchproxy_cache_restores_total",
		Help: "Saved caches found when their feeds started, by outcome: restored, refused (unusable).",
	}, []string{"outcome"})
	m.checks = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "watchproxy_self_checks_total",
		Help: "Comparisons of a cache with upstream's state at the same resourceVersion, by outcome: same, different (the cache was read again), inconclusive.",
	}, append(resourceLabels, "outcome"))
	r.MustRegister(m.checks, m.saves, m.restores, m.relists, m.runs, m.readers, m.seconds, m.cost, m.saved)
	return m
}

func (m *Metrics) freshRun(gvr schema.GroupVersionResource, outcome string, readers int) {
	m.runs.WithLabelValues(gvr.Group, gvr.Version, gvr.Resource, outcome).Inc()
	m.readers.WithLabelValues(gvr.Group, gvr.Version, gvr.Resource).Observe(float64(readers))
}

func (m *Metrics) freshRead(outcome string, waited time.Duration) {
	m.seconds.WithLabelValues(outcome).Observe(waited.Seconds())
}

// spent adds the time that upstream took to answer.
func (m *Metrics) spent(by string, took time.Duration) {
	m.cost.WithLabelValues(by).Add(took.Seconds())
}

// spend is called before a request to upstream; its result is called after the answer.
func (m *Metrics) spend(by string) (answered func()) {
	began := time.Now()
	return func() { m.spent(by, time.Since(began)) }
}

// ExpectSaves starts the outcomes of saves at 0: Prometheus sees no increase in a new series.
func (m *Metrics) ExpectSaves() {
	m.saves.WithLabelValues(saveDone)
	m.saves.WithLabelValues(saveFailed)
}

// SaveFailed counts a save that could not be started.
func (m *Metrics) SaveFailed() { m.saves.WithLabelValues(saveFailed).Inc() }

// Outcomes of a save.
const (
	saveDone   = "saved"
	saveFailed = "failed"
)

// Collector shows the state of the feeds at each scrape.
type Collector struct{ feeds *Feeds }

// NewCollector returns a collector of the feeds' gauges.
func NewCollector(feeds *Feeds) *Collector { return &Collector{feeds} }

func desc(name, help string) *prometheus.Desc {
	return prometheus.NewDesc(name, help, append(resourceLabels, "encoding"), nil)
}

var (
	descSynced   = desc("watchproxy_feed_synced", "1 if the feed has read its state, else 0.")
	descObjects  = desc("watchproxy_feed_objects", "Objects in the cache.")
	descBytes    = desc("watchproxy_feed_object_bytes", "Bytes of the cached objects.")
	descRV       = desc("watchproxy_feed_resource_version", "The resourceVersion that the cache has reached.")
	descSign     = desc("watchproxy_feed_last_sign_seconds", "Seconds since upstream's last event, bookmark or answer on this feed.")
	descLost     = desc("watchproxy_feed_lost_seconds", "Seconds since the watch upstream was lost or nobody answered, 0 while the watch works.")
	descAway     = desc("watchproxy_feed_unreachable_seconds", "The same, but 0 while upstream answers, even with a refusal.")
	descLog      = desc("watchproxy_feed_log_events", "Events held in the log.")
	descLogBytes = desc("watchproxy_feed_log_bytes", "Bytes that only the event log keeps alive.")
	descCursors  = desc("watchproxy_feed_watches", "Open downstream watches served from the cache.")
	descEvents   = desc("watchproxy_feed_events_total", "Events received from upstream in the present epoch.")
	descSent     = desc("watchproxy_events_delivered_total", "Events delivered to downstream watches from the cache.")
)

// Describe implements prometheus.Collector.
func (c *Collector) Describe(ch chan<- *prometheus.Desc) { prometheus.DescribeByCollect(c, ch) }

// Collect implements prometheus.Collector.
func (c *Collector) Collect(ch chan<- prometheus.Metric) {
	for _, f := range c.feeds.Status() {
		labels := []string{f.GVR.Group, f.GVR.Version, f.GVR.Resource, f.Encoding.String()}
		gauge := func(d *prometheus.Desc, v float64) {
			ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
		}
		counter := func(d *prometheus.Desc, v float64) {
			ch <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, v, labels...)
		}
		synced := 0.0
		if f.Ready {
			synced = 1
		}
		gauge(descSynced, synced)
		gauge(descObjects, float64(f.Objects))
		gauge(descBytes, float64(f.Bytes))
		gauge(descRV, float64(f.Newest))
		gauge(descSign, time.Since(f.LastSign).Seconds())
		gauge(descLost, f.Lost.Seconds())
		gauge(descAway, f.Unreachable.Seconds())
		gauge(descLog, float64(f.LogEvents))
		gauge(descLogBytes, float64(f.LogBytes))
		gauge(descCursors, float64(f.Cursors))
		counter(descEvents, float64(f.Events))
		counter(descSent, float64(f.Delivered))
	}
}
