// Package status tells what a running proxy caches, and what that saves: it makes what the admin address
// serves at /status, and has the command that asks for it and prints it.
package status

import (
	"math"
	"runtime/debug"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/watchproxy/watchproxy/watchcache/upstream"
)

// Status is what /status shows. What it counts, it counts since the proxy's start.
type Status struct {
	Version       string       `json:"version"`
	Upstream      string       `json:"upstream"`
	UptimeSeconds float64      `json:"uptimeSeconds"`
	CPUSeconds    float64      `json:"cpuSeconds"` // of all processors
	Memory        memory       `json:"memory"`
	Requests      requests     `json:"requests"`
	ToUpstream    toUpstream   `json:"upstreamRequests"`
	MostRecent    mostRecent   `json:"mostRecentReads"`
	Watches       int          `json:"watches"` // open ones that the cache serves
	Feeds         []feedStatus `json:"feeds"`
}

// memory is in bytes. The parts of the cache are within what is resident.
type memory struct {
	Resident int64 `json:"residentBytes"` // of the process; 0 where the system does not tell
	Objects  int64 `json:"objectBytes"`   // of the objects in the caches, as upstream sent them
	Log      int64 `json:"logBytes"`      // that only the event logs keep
	Derived  int64 `json:"derivedBytes"`  // made of pages: compressed, metadata only, selected
	Limit    int64 `json:"limitBytes"`    // that the garbage collector keeps to; 0 for none
}

// requests are those of clients, by where their answers came from. A watch is one request.
type requests struct {
	Cache     int64 `json:"cache"`
	Forwarded int64 `json:"forwarded"` // Shared ones among them
	Shared    int64 `json:"shared"`    // answered by another one's request upstream
	Refused   int64 `json:"refused"`   // by the proxy: access, limits, malformed requests
	// HitRatio is the part of gets, lists and watches of resources that the cache has answered, from 0 to 1; null before
	// the first of them. Subresources, writes, discovery and what upstream answered with an error are left out: no
	// cache could have them. So are answers that a resourceVersion is too old (410).
	HitRatio *float64 `json:"hitRatio"`
}

// toUpstream are the requests that upstream got.
type toUpstream struct {
	Forwarded int64 `json:"forwarded"` // those of clients, shared ones left out
	Feeds     int64 `json:"feeds"`     // lists, watches, probes: what caching costs
	Reviews   int64 `json:"reviews"`   // of tokens and access: what authentication and authorization cost
	Total     int64 `json:"total"`     // of the three
	// Saved is how many more there would be if all requests that the cache or another one's request has answered had
	// gone upstream, and there were no feeds and reviews. It is negative while these are still more than those.
	Saved int64 `json:"saved"`
}

// mostRecent are reads of the most recent state that caches are there for.
type mostRecent struct {
	// Reads are how many there were by what showed that the cache was up to date, as in watchproxy_freshness_seconds; direct
	// are those that upstream answered instead.
	Reads map[string]float64 `json:"reads"`
	// UpstreamSeconds is how long upstream took for that, SavedSeconds how long it would have taken to answer the
	// lists among those of the cache, by what it took for others of like size.
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
	LastSignSeconds float64 `json:"lastSignSeconds"` // since an event, a bookmark or an answer of upstream's
	Objects         int     `json:"objects"`
	ObjectBytes     int64   `json:"objectBytes"`
	LogEvents       int     `json:"logEvents"`
	LogBytes        int64   `json:"logBytes"`
	Watches         int     `json:"watches"`
	Events          uint64  `json:"events"`
	Delivered       uint64  `json:"eventsDelivered"`
}

// Of returns the status of a proxy of a version, which began to serve at some time.
func Of(version, host string, began time.Time, feeds []upstream.FeedStatus, metrics prometheus.Gatherer) (*Status, error) {
	s := &Status{Version: version, Upstream: host, UptimeSeconds: time.Since(began).Seconds(), Feeds: []feedStatus{}}
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
	m, err := gather(metrics)
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

// count fills in the requests of clients, and those to upstream.
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
	u.Feeds = int64(m.sum("watchproxy_feed_requests_total"))
	u.Reviews = int64(m.sum("watchproxy_reviews_total"))
	u.Total = u.Forwarded + u.Feeds + u.Reviews
	u.Saved = r.Cache - int64(tooOld) + r.Forwarded - u.Total
}
