package feed

import (
	"slices"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/watchproxy/watchproxy/watchcache"
	"github.com/watchproxy/watchproxy/watchcache/object"
	"github.com/watchproxy/watchproxy/watchcache/upstream/client"
	"github.com/watchproxy/watchproxy/watchcache/upstream/discovery"
)

// Shared contains what all feeds share.
type Shared struct {
	Client  *client.Client
	Health  *client.Health
	Names   *discovery.Discovery
	Ledger  Ledger
	Metrics *Metrics
	Log     *zap.Logger
	Options atomic.Pointer[Options]
	answers responsiveness
}

// Options contains the options of all feeds.
type Options struct {
	// Excluded lists resources that are never cached, in any version.
	Excluded []schema.GroupResource
	// Resources contains options of individual resources, for all versions.
	Resources map[schema.GroupResource]ResourceOptions
	// Scopes limits the caches of resources to these scopes, the narrowest first. OtherScopes does
	// so for all resources that are not in Scopes. Without scopes, the whole resource is cached.
	Scopes      map[schema.GroupResource][]object.Scope
	OtherScopes []object.Scope
	// OwnNamespace is cached if upstream forbids a whole resource without scopes; "" for none.
	OwnNamespace string
	// Limits bound each resource's event log.
	Limits watchcache.Limits
	// IdleTimeout is how long a feed runs without a request or an open watch; 0 means forever.
	IdleTimeout time.Duration
	// SelfCheck is the interval at which caches are compared with upstream; 0 means never.
	SelfCheck time.Duration
	// MaxProbes limits the probes per second for consistent reads. All resources share this limit;
	// 0 means no limit.
	MaxProbes int
	// Ledger lets the proxy watch the metadata of other resources while consistent readers benefit.
	Ledger bool
}

// ResourceOptions are options of one resource.
type ResourceOptions struct {
	// ForwardConsistent sends reads of the most recent state to upstream.
	ForwardConsistent bool
	// MaxAge is the maximum age of a state that may serve reads of the most recent state. With 0,
	// such reads always return the most recent state.
	MaxAge time.Duration
	// Aggregated caches the resource even if an aggregated API serves it.
	Aggregated bool
}

// Excludes reports whether a resource is never cached.
func (o *Options) Excludes(gvr schema.GroupVersionResource) bool {
	return slices.Contains(o.Excluded, gvr.GroupResource())
}

// ScopesOf returns the scopes that the configuration names for a resource, the narrowest first.
func (o *Options) ScopesOf(gr schema.GroupResource) []object.Scope {
	if scopes, ok := o.Scopes[gr]; ok {
		return scopes
	}
	return o.OtherScopes
}

// Uses records in the ledger that a resource has used revisions.
func (u *Shared) Uses(o Owner, rvs ...uint64) {
	if err := u.Ledger.Note(o, rvs...); err != nil {
		const message = "the ledger starts over, and excludes two resources the second time"
		u.Log.Warn(message, zap.Error(err))
	}
}

// Metrics contains the feeds' counters.
type Metrics struct {
	Relists *prometheus.CounterVec
	Checks  *prometheus.CounterVec
}

// NewMetrics registers the counters.
func NewMetrics(r prometheus.Registerer) *Metrics {
	m := &Metrics{
		Relists: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "watchproxy_feed_relists_total",
			Help: "Relists of a feed, by reason.",
		}, []string{"group", "version", "resource", "reason"}),
		Checks: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "watchproxy_self_checks_total",
			Help: "Comparisons of a cache with upstream's state at the same resourceVersion, by " +
				"outcome: same, different (the cache was read again), changed (upstream serves " +
				"the resource in another way now, and the cache began anew), inconclusive.",
		}, []string{"group", "version", "resource", "outcome"}),
	}
	r.MustRegister(m.Relists, m.Checks)
	return m
}
