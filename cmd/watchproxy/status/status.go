// Package status reports the caches of a running proxy and the upstream requests that they save.
// The proxy serves the report at /status of its admin address. The command status prints it.
package status

import (
	"math"
	"net/http"
	"runtime/debug"
	"strconv"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/watchproxy/watchproxy/proxy/metrics"
	"github.com/watchproxy/watchproxy/watchcache/upstream"
)

// Status is the report. Its counts begin at the proxy's start, except for Forwarded.
type Status struct {
	Version       string     `json:"version"`
	Upstream      string     `json:"upstream"`
	UptimeSeconds float64    `json:"uptimeSeconds"`
	Memory        memory     `json:"memory"`
	Requests      requests   `json:"requests"`
	Errors        failures   `json:"errors"`
	Latency       latency    `json:"latency"`
	ToUpstream    toUpstream `json:"upstreamRequests"`
	Watches       int        `json:"watches"` // open watches from the cache
	// UnfoundFields lists the fields of views that no object has, in a sample of each cache.
	UnfoundFields []UnfoundField `json:"unfoundFields,omitempty"`
	// UpstreamSilentSeconds is the time since the last answer to a check. A usable server means 0.
	UpstreamSilentSeconds float64 `json:"upstreamSilentSeconds"`
	// ConfigRefused is true if the proxy has refused the changed file and uses the previous one.
	ConfigRefused bool         `json:"configRefused"`
	Feeds         []feedStatus `json:"feeds"`
	// Forwarded lists what upstream answered in the last five minutes and why, most frequent first.
	Forwarded []metrics.Forwarded `json:"forwarded"`
}

// UnfoundField is the path of a view that no object has, in a sample of each resource's cache.
type UnfoundField struct {
	View      string   `json:"view"`
	Field     string   `json:"field"`
	Resources []string `json:"resources"` // of the view
}

// memory contains numbers of bytes. Resident includes Objects, Log and Derived.
type memory struct {
	Resident int64 `json:"residentBytes"` // of the process; 0 if unknown
	Objects  int64 `json:"objectBytes"`   // of cached objects, as upstream sent them
	Log      int64 `json:"logBytes"`      // of objects that are only in the event logs
	Derived  int64 `json:"derivedBytes"`  // derived from pages: compressed, metadata only, selected
	Limit    int64 `json:"limitBytes"`    // of the garbage collector; 0 means no limit
}

type requests struct {
	Cache     int64 `json:"cache"`
	Forwarded int64 `json:"forwarded"` // includes Shared
	Shared    int64 `json:"shared"`    // answered with the response to another client's request
	Refused   int64 `json:"refused"`   // by the proxy: access, limits, malformed requests
	// HitRatio is the share of gets, lists and watches of resources that the cache answered, from 0
	// to 1; null before the first. It excludes what no cache could answer (subresources, writes,
	// discovery), upstream's errors, and 410 responses, after which clients list again.
	HitRatio *float64 `json:"hitRatio"`
}

type failures struct {
	Server  int64 `json:"server"`  // 500 and above
	Limited int64 `json:"limited"` // 429
	Client  int64 `json:"client"`  // 400 to 499, except 429
}

// latency has the times to a response (not of watches) and from an event's arrival to its write.
type latency struct {
	Cache     histogram `json:"cache"`     // of responses from the cache
	Forwarded histogram `json:"forwarded"` // of responses from upstream
	Delivery  histogram `json:"delivery"`  // of events, to clients that had read all earlier events
}

type toUpstream struct {
	Forwarded int64 `json:"forwarded"` // of clients, without Shared
	Feeds     int64 `json:"feeds"`     // lists, watches, probes: the cost of caching
	Reviews   int64 `json:"reviews"`   // of tokens and access: the cost of access control
	Total     int64 `json:"total"`     // sum of these three
	// Saved is the number of requests that upstream would have got without the proxy, minus Total.
	// It is negative while feeds and reviews outnumber the cached and shared responses.
	Saved int64 `json:"saved"`
	// SavedBytes is the number of bytes in the bodies of responses from the cache, as sent.
	// FeedBytes is the number of bytes that feeds have read from upstream, after decompression.
	SavedBytes int64 `json:"savedBytes"`
	FeedBytes  int64 `json:"feedBytes"`
}

type feedStatus struct {
	Group           string  `json:"group"`
	Version         string  `json:"version"`
	Resource        string  `json:"resource"`
	Encoding        string  `json:"encoding"`
	Scope           string  `json:"scope,omitempty"` // "" for the whole resource
	Synced          bool    `json:"synced"`
	Failing         bool    `json:"failing"`
	LostSeconds     float64 `json:"lostSeconds"`
	ResourceVersion uint64  `json:"resourceVersion"`
	OldestVersion   uint64  `json:"oldestResourceVersion"`
	LastSignSeconds float64 `json:"lastSignSeconds"` // since upstream's last event or response
	Objects         int     `json:"objects"`
	ObjectBytes     int64   `json:"objectBytes"`
	LogEvents       int     `json:"logEvents"`
	LogBytes        int64   `json:"logBytes"`
	Watches         int     `json:"watches"`
	Events          uint64  `json:"events"`
	Delivered       uint64  `json:"eventsDelivered"`
}

// Of returns the report of a proxy, without Version, Upstream, UptimeSeconds and UnfoundFields.
func Of(
	feeds []upstream.FeedStatus, forwarded []metrics.Forwarded, figures prometheus.Gatherer,
) (*Status, error) {
	s := &Status{Feeds: []feedStatus{}, Forwarded: forwarded}
	for _, f := range feeds {
		s.Watches += f.Cursors
		s.Memory.Objects += f.Bytes
		s.Memory.Log += f.LogBytes
		s.Feeds = append(s.Feeds, feedStatus{
			Group: f.GVR.Group, Version: f.GVR.Version, Resource: f.GVR.Resource,
			Encoding: f.Encoding.String(), Scope: f.Scope.String(),
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
	s.Memory.Resident = int64(m.sum("process_resident_memory_bytes"))
	s.Memory.Derived = int64(m.sum("watchproxy_derived_bytes"))
	if limit := debug.SetMemoryLimit(-1); limit != math.MaxInt64 {
		s.Memory.Limit = limit
	}
	s.UpstreamSilentSeconds = silent(m)
	s.ConfigRefused = m.sum("watchproxy_config_refused") > 0
	s.count(m)
	prompt := func(l labels) bool { return l["client"] != "slow" }
	from := func(source string) func(labels) bool {
		return func(l labels) bool { return l["source"] == source && l["verb"] != "watch" }
	}
	s.Latency = latency{
		Cache:     m.histogram("watchproxy_request_duration_seconds", from("cache")),
		Forwarded: m.histogram("watchproxy_request_duration_seconds", from("upstream")),
		Delivery:  m.histogram("watchproxy_watch_delivery_lag_seconds", prompt),
	}
	return s, nil
}

func silent(m families) (seconds float64) {
	var last float64
	for _, at := range m.series("watchproxy_upstream_last_answer_timestamp_seconds") {
		last = max(last, at)
	}
	if last == 0 || m.sum("watchproxy_upstream_server_usable") > 0 {
		return 0
	}
	return max(0, float64(time.Now().Unix())-last)
}

func (s *Status) count(m families) {
	const total = "watchproxy_requests_total"
	sources := m.by(total, "source")
	for code, n := range m.by(total, "code") {
		switch {
		case code == strconv.Itoa(http.StatusTooManyRequests):
			s.Errors.Limited += int64(n)
		case strings.HasPrefix(code, "4"):
			s.Errors.Client += int64(n)
		case strings.HasPrefix(code, "5"):
			s.Errors.Server += int64(n)
		}
	}
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
	r.Cache, r.Forwarded = int64(sources["cache"]), int64(sources["upstream"])
	r.Refused = int64(sources["proxy"])
	r.Shared = int64(m.sum("watchproxy_forwards_shared_total"))
	if reads := hits + misses; reads > 0 {
		ratio := hits / reads
		r.HitRatio = &ratio
	}
	u.Forwarded = r.Forwarded - r.Shared
	u.Feeds = int64(m.sum("watchproxy_feed_requests_total"))
	all := func(labels) bool { return true }
	u.Reviews = int64(m.histogram("watchproxy_review_duration_seconds", all).Count)
	u.Total = u.Forwarded + u.Feeds + u.Reviews
	u.Saved = r.Cache - int64(tooOld) + r.Forwarded - u.Total
	u.SavedBytes = int64(m.by("watchproxy_response_bytes_total", "source")["cache"])
	u.FeedBytes = int64(m.sum("watchproxy_feed_received_bytes_total"))
}
