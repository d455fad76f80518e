// Package status reports what a running proxy caches and how many upstream requests that saves. The
// proxy serves the report at /status of its admin address. The command status fetches and prints
// it.
package status

import (
	"math"
	"runtime/debug"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/watchproxy/watchproxy/proxy/metrics"
	"github.com/watchproxy/watchproxy/watchcache/upstream"
)

// Status is the report. It counts from the proxy's start, except for Forwarded.
type Status struct {
	Version       string       `json:"version"`
	Upstream      string       `json:"upstream"`
	UptimeSeconds float64      `json:"uptimeSeconds"`
	CPUSeconds    float64      `json:"cpuSeconds"` // of all processors
	Memory        memory       `json:"memory"`
	Requests      requests     `json:"requests"`
	ToUpstream    toUpstream   `json:"upstreamRequests"`
	MostRecent    mostRecent   `json:"mostRecentReads"`
	Watches       int          `json:"watches"` // open ones, from the cache
	Feeds         []feedStatus `json:"feeds"`
	// Forwarded is what upstream answered in the last five minutes, and why, the most frequent
	// first.
	Forwarded []metrics.Forwarded `json:"forwarded"`
}

// memory is in bytes. Resident includes the parts of the cache.
type memory struct {
	Resident int64 `json:"residentBytes"` // of the process; 0 if unknown
	Objects  int64 `json:"objectBytes"`   // of cached objects, as upstream sent them
	Log      int64 `json:"logBytes"`      // of objects that only the event logs keep
	Derived  int64 `json:"derivedBytes"`  // derived from pages: compressed, metadata only, selected
	Limit    int64 `json:"limitBytes"`    // of the garbage collector; 0 for none
}

// requests are those of clients, by the source of the answer. A watch is one request.
type requests struct {
	Cache     int64 `json:"cache"`
	Forwarded int64 `json:"forwarded"` // includes Shared
	Shared    int64 `json:"shared"`    // answered by another client's request upstream
	Refused   int64 `json:"refused"`   // by the proxy: access, limits, malformed requests
	// HitRatio is the share of gets, lists and watches of resources that the cache answered, from 0
	// to 1. It is null before the first of them. It excludes requests that no cache could answer
	// (subresources, writes, discovery) and upstream's errors. It also excludes 410 answers, after
	// which clients list again.
	HitRatio *float64 `json:"hitRatio"`
}

// toUpstream counts the requests that upstream got.
type toUpstream struct {
	Forwarded int64 `json:"forwarded"` // of clients, without Shared
	Feeds     int64 `json:"feeds"`     // lists, watches, probes, revalidations: the cost of caching
	Reviews   int64 `json:"reviews"`   // of tokens and access: the cost of authentication and authorization
	Total     int64 `json:"total"`     // of the three
	// Saved is the number of requests that upstream would have got without the proxy, less Total.
	// It is negative while feeds and reviews outnumber the answers from the cache and the shared
	// ones.
	Saved int64 `json:"saved"`
}

// mostRecent counts reads of the most recent state of cached resources.
type mostRecent struct {
	// Reads is the number of reads for each kind of proof that the cache was up to date, as in
	// watchproxy_freshness_seconds. The reads under "direct" were answered by upstream.
	Reads map[string]float64 `json:"reads"`
	// UpstreamSeconds is upstream's time for the proofs. SavedSeconds estimates the time that
	// upstream would have taken for the lists among the reads, from its time for lists of similar
	// size.
	UpstreamSeconds map[string]float64 `json:"upstreamSeconds"`
	SavedSeconds    float64            `json:"savedSeconds"`
}

type feedStatus struct {
	Group           string  `json:"group"`
	Version         string  `json:"version"`
	Resource        string  `json:"resource"`
	Encoding        string  `json:"encoding"`
	Synced          bool    `json:"synced"`
	Failing         bool    `json:"failing"`
	LostSeconds     float64 `json:"lostSeconds"`
	ResourceVersion uint64  `json:"resourceVersion"`
	OldestVersion   uint64  `json:"oldestResourceVersion"`
	LastSignSeconds float64 `json:"lastSignSeconds"` // since upstream's last event, bookmark or answer
	Objects         int     `json:"objects"`
	ObjectBytes     int64   `json:"objectBytes"`
	LogEvents       int     `json:"logEvents"`
	LogBytes        int64   `json:"logBytes"`
	Watches         int     `json:"watches"`
	Events          uint64  `json:"events"`
	Delivered       uint64  `json:"eventsDelivered"`
}

// Of makes the report of a proxy. began is the time when it started to serve; host is its upstream.
func Of(version, host string, began time.Time, feeds []upstream.FeedStatus, forwarded []metrics.Forwarded, figures prometheus.Gatherer) (*Status, error) {
	s := &Status{Version: version, Upstream: host, UptimeSeconds: time.Since(began).Seconds(), Feeds: []feedStatus{}, Forwarded: forwarded}
	for _, f := range feeds {
		s.Watches += f.Cursors
		s.Memory.Objects += f.Bytes
		s.Memory.Log += f.LogBytes
		s.Feeds = append(s.Feeds, feedStatus{
			Group: f.GVR.Group, Version: f.GVR.Version, Resource: f.GVR.Resource, Encoding: f.Encoding.String(),
			Synced: f.Ready, Failing: f.Lost > 0, LostSeconds: f.Lost.Seconds(),
			ResourceVersion: f.ResourceVersion, OldestVersion: f.Since,
			LastSignSeconds: time.Since(f.LastSign).Seconds(),
			Objects:         f.Objects, ObjectBytes: f.Bytes,
			LogEvents: f.LogEvents, LogBytes: f.LogBytes,
			Watches: f.Cursors, Events: f.Events, Delivered: f.Delivered,
		})
	}
	m, err := gather(figures)
	if err != nil {
		return nil, err
	}
	s.CPUSeconds = m.sum("process_cpu_seconds_total")
	s.Memory.Resident = int64(m.sum("process_resident_memory_bytes"))
	s.Memory.Derived = int64(m.sum("watchproxy_derived_bytes"))
	if limit := debug.SetMemoryLimit(-1); limit != math.MaxInt64 {
		s.Memory.Limit = limit
	}
	s.MostRecent = mostRecent{
		Reads:           m.by("watchproxy_freshness_seconds", "outcome"),
		UpstreamSeconds: m.by("watchproxy_freshness_upstream_seconds_total", "by"),
		SavedSeconds:    m.sum("watchproxy_freshness_saved_seconds_total"),
	}
	s.count(m)
	return s, nil
}

// count sets the numbers of requests, of clients and to upstream.
func (s *Status) count(m families) {
	const total = "watchproxy_requests_total"
	sources := m.by(total, "source")
	var hits, misses, tooOld float64
	for l, n := range m.series(total) {
		switch {
		case !l.isRead():
		case l["source"] == "upstream":
			misses += n
		case l["source"] == "cache" && l["code"] == "410": // the client has to list again
			tooOld += n
		case l["source"] == "cache":
			hits += n
		}
	}
	r, u := &s.Requests, &s.ToUpstream
	r.Cache, r.Forwarded, r.Refused = int64(sources["cache"]), int64(sources["upstream"]), int64(sources["proxy"])
	r.Shared = int64(m.sum("watchproxy_forwards_shared_total"))
	if reads := hits + misses; reads > 0 {
		ratio := hits / reads
		r.HitRatio = &ratio
	}
	u.Forwarded = r.Forwarded - r.Shared
	revalidations := m.by("watchproxy_revalidations_total", "result") // answers with a new document count as forwarded
	u.Feeds = int64(m.sum("watchproxy_feed_requests_total") + revalidations["unchanged"] + revalidations["failed"])
	u.Reviews = int64(m.sum("watchproxy_reviews_total"))
	u.Total = u.Forwarded + u.Feeds + u.Reviews
	u.Saved = r.Cache - int64(tooOld) + r.Forwarded - u.Total
}
