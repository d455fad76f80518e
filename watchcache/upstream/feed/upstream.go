package feed

import (
	"slices"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/watchproxy/watchproxy/watchcache"
	"github.com/watchproxy/watchproxy/watchcache/upstream/client"
	"github.com/watchproxy/watchproxy/watchcache/upstream/discovery"
	"github.com/watchproxy/watchproxy/watchcache/upstream/ledger"
	"github.com/watchproxy/watchproxy/watchcache/upstream/servers"
	"github.com/watchproxy/watchproxy/watchcache/upstream/store"
)

// Upstream is what all feeds have in common.
type Upstream struct {
	Client  *client.Client
	Health  *servers.Health
	Names   *discovery.Discovery
	Store   *store.Store // nil if caches are not saved
	Ledger  ledger.Ledger
	Owners  ledger.Owners
	Metrics *Metrics
	Log     *zap.Logger
	Options atomic.Pointer[Options]
}

// Options say which resources are cached, and how.
type Options struct {
	// Excluded resources are never cached, in any version.
	Excluded []schema.GroupResource
	// Resources holds the options of single resources, in any version.
	Resources map[schema.GroupResource]ResourceOptions
	// Limits bound each resource's event log.
	Limits watchcache.Limits
	// IdleTimeout stops a feed after this long without a request or an open watch; 0 means never.
	IdleTimeout time.Duration
	// SelfCheck is the time between two comparisons of a cache with upstream; 0 means never.
	SelfCheck time.Duration
	// MaxProbes bounds the probes per second for consistent reads. All resources share it; 0 means
	// no limit.
	MaxProbes int
	// Ledger watches the metadata of other resources while there are consistent readers that
	// benefit.
	Ledger bool
	// Direct sends a read to upstream if upstream is likely to answer faster than the cache.
	Direct bool
}

// ResourceOptions are options of one resource.
type ResourceOptions struct {
	// ForwardConsistent sends reads of the most recent state to upstream.
	ForwardConsistent bool
	// MaxAge lets reads of the most recent state see a state that may be out of date by up to this
	// time. With 0 they always see the most recent one.
	MaxAge time.Duration
	// Aggregated caches the resource even if an aggregated API serves it.
	Aggregated bool
}

// Excludes tells whether a resource is never cached.
func (o *Options) Excludes(gvr schema.GroupVersionResource) bool {
	return slices.Contains(o.Excluded, gvr.GroupResource())
}

// Uses records in the ledger that a resource has used revisions.
func (u *Upstream) Uses(o ledger.Owner, rvs ...uint64) {
	shared := u.Ledger.Note(o, rvs...)
	if shared == nil {
		return
	}
	u.Log.Warn("two resources used one revision; the ledger starts over, and excludes them the second time",
		zap.Stringers("resources", u.Owners.Names(shared.One, shared.Other)), zap.Uint64("resourceVersion", shared.RV))
}

// Metrics measure what feeds cost upstream.
type Metrics struct {
	Relists  *prometheus.CounterVec
	Restores *prometheus.CounterVec
	cost     *prometheus.CounterVec
}

// NewMetrics registers the counters.
func NewMetrics(r prometheus.Registerer) *Metrics {
	m := &Metrics{
		Relists: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "watchproxy_feed_relists_total",
			Help: "Relists of a feed, by reason.",
		}, []string{"group", "version", "resource", "reason"}),
		Restores: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "watchproxy_cache_restores_total",
			Help: "Saved caches found when their feeds started, by outcome: restored, refused (unusable).",
		}, []string{"outcome"}),
		cost: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "watchproxy_freshness_upstream_seconds_total",
			Help: "Seconds that upstream took for freshness checks (probe, list, metadata; not side watches, which mostly wait) and for consistent reads left to it (direct).",
		}, []string{"by"}),
	}
	r.MustRegister(m.Relists, m.Restores, m.cost)
	return m
}

// Spent adds the time that upstream took to answer.
func (m *Metrics) Spent(by string, took time.Duration) {
	m.cost.WithLabelValues(by).Add(took.Seconds())
}

// Spend is called before a request to upstream. The function that it returns is called after the
// answer.
func (m *Metrics) Spend(by string) (answered func()) {
	began := time.Now()
	return func() { m.Spent(by, time.Since(began)) }
}
