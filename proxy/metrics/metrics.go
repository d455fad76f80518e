// Package metrics counts requests and where their answers come from. Clients cannot make up label
// values, because a resource gets labels only after upstream has answered for it.
package metrics

import (
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/watchproxy/watchproxy/proxy/exchange"
)

// Metrics count requests and where their answers come from.
type Metrics struct {
	known    names
	requests *prometheus.CounterVec
	seconds  *prometheus.HistogramVec
	watches  *prometheus.GaugeVec
	forwards *prometheus.CounterVec
	recent   recent
	Forwards *prometheus.GaugeVec
	Shared   prometheus.Counter
	Limited  *prometheus.CounterVec
	Browsers *prometheus.CounterVec
	Refused  *prometheus.CounterVec
	asked    *prometheus.CounterVec
}

// New registers the server's metrics.
func New(r prometheus.Registerer) *Metrics {
	m := &Metrics{
		requests: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "watchproxy_requests_total",
			Help: "Answered requests, by verb, resource, status code (of the ERROR, for a watch of one ERROR) and source (cache, " +
				"upstream: forwarded, proxy: refused here).",
		}, []string{"verb", "group", "version", "resource", "code", "source"}),
		seconds: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name:    "watchproxy_request_duration_seconds",
			Help:    "Seconds until an answer was ready to be written, by verb and source.",
			Buckets: prometheus.ExponentialBuckets(0.0001, 4, 9),
		}, []string{"verb", "source"}),
		watches: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "watchproxy_watches",
			Help: "Open watches served from the cache.",
		}, []string{"group", "version", "resource"}),
		forwards: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "watchproxy_forwarded_total",
			Help: "Forwarded requests, by verb, resource and reason: not-a-read (writes, subresources, other paths), discovery (new documents, or without an ETag), credentials (upstream has to " +
				"judge the client), not-cached (the resource), parameters, form (Accept), table, most-recent (upstream answers at less cost), page, " +
				"too-old, too-old-watch, too-large, not-up-to-date, upstream-lost, upstream-sooner.",
		}, []string{"verb", "group", "version", "resource", "reason"}),
		Forwards: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "watchproxy_forwards_in_flight",
			Help: "Forwarded requests in flight, by verb. An open watch counts.",
		}, []string{"verb"}),
		Shared: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "watchproxy_forwards_shared_total",
			Help: "Gets and lists that shared another request's answer: upstream never saw them.",
		}),
	}
	m.Limited = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "watchproxy_limited_total",
		Help: "Requests refused with 429, by the limit that they exceeded.",
	}, []string{"limit"})
	m.Browsers = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "watchproxy_browser_refusals_total",
		Help: "Requests refused with 403 because a web page may have made a browser send them, by listener (clients, admin) and reason.",
	}, []string{"listener", "reason"})
	m.Refused = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "watchproxy_connections_refused_total",
		Help: "Connections closed or reset before they were served, by reason (limit: too many are open, error: accept failed, as without " +
			"file descriptors, heads: too many bytes of incomplete requests, strangers: too many unknown clients leave answers unread).",
	}, []string{"reason"})
	m.asked = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "watchproxy_revalidations_total",
		Help: "Requests of the proxy for documents of discovery and OpenAPI, by result (unchanged: its copy is current, new: another " +
			"document, failed: clients were forwarded).",
	}, []string{"result"})
	r.MustRegister(m.requests, m.forwards, m.seconds, m.watches, m.Forwards, m.Shared, m.Limited, m.Browsers, m.Refused, m.asked)
	return m
}

// ConnectionRefused counts a connection that was closed before it was served.
func (m *Metrics) ConnectionRefused(reason string) { m.Refused.WithLabelValues(reason).Inc() }

// Revalidated counts a request of the proxy for a document.
func (m *Metrics) Revalidated(result string) { m.asked.WithLabelValues(result).Inc() }

// Request counts an answered request.
func (m *Metrics) Request(rt exchange.Route, resp *exchange.Response, took time.Duration) {
	gvr, code := m.known.admit(metricLabels(rt, resp)), resp.Status
	if resp.Told != 0 {
		code = resp.Told
	}
	m.requests.WithLabelValues(rt.Verb, gvr[0], gvr[1], gvr[2], strconv.Itoa(code), string(resp.Source)).Inc()
	m.seconds.WithLabelValues(rt.Verb, string(resp.Source)).Observe(took.Seconds())
	if resp.Source == exchange.FromUpstream {
		m.forwards.WithLabelValues(rt.Verb, gvr[0], gvr[1], gvr[2], resp.Why).Inc()
		m.recent.add(Forwarded{Verb: rt.Verb, Group: gvr[0], Version: gvr[1], Resource: gvr[2], Reason: resp.Why}, time.Now())
	}
}

// Recent returns what was forwarded in the last minutes, the most frequent first.
func (m *Metrics) Recent() []Forwarded { return m.recent.all(time.Now()) }

// metricLabels are group, version and resource, or empty for a name that a client may have made up.
func metricLabels(rt exchange.Route, resp *exchange.Response) [3]string {
	if !rt.Resource || resp.Source == exchange.FromProxy {
		return [3]string{}
	}
	if resp.Source == exchange.FromUpstream && resp.Status >= http.StatusMultipleChoices {
		return [3]string{}
	}
	resource := rt.GVR.Resource
	if rt.Subresource != "" {
		resource += "/" + rt.Subresource
	}
	labels := [3]string{rt.GVR.Group, rt.GVR.Version, resource}
	if all := strings.Join(labels[:], ""); len(all) > labelsMost || !utf8.ValidString(all) {
		return [3]string{} // not valid as labels
	}
	return labels
}

const (
	// labelsMost bounds the total length of a resource's labels, in bytes. Real names are shorter.
	labelsMost = 512
	// namesMost bounds the resources with labels.
	namesMost = 4096
)

// names are the resources with labels. An aggregated API, such as external metrics, may answer for
// any name, so the number of names is bounded. All further resources share one label.
type names struct {
	mu struct {
		sync.RWMutex
		seen map[[3]string]*[3]string // copies, so that labels do not keep a request in memory
	}
}

// admit returns the labels, or empty ones if there are too many.
func (n *names) admit(labels [3]string) [3]string {
	n.mu.RLock()
	seen := n.mu.seen[labels]
	n.mu.RUnlock()
	if seen != nil {
		return *seen
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if len(n.mu.seen) >= namesMost {
		return [3]string{}
	}
	if n.mu.seen == nil {
		n.mu.seen = map[[3]string]*[3]string{}
	}
	own := [3]string{strings.Clone(labels[0]), strings.Clone(labels[1]), strings.Clone(labels[2])}
	n.mu.seen[own] = &own
	return own
}

// ForwardBegan counts a forwarded request until the returned function is called.
func (m *Metrics) ForwardBegan(verb string) (done func()) {
	gauge := m.Forwards.WithLabelValues(verb)
	gauge.Inc()
	return gauge.Dec
}

// WatchOpened counts an open watch. The caller decrements the gauge when the watch ends.
func (m *Metrics) WatchOpened(rt exchange.Route) prometheus.Gauge {
	gvr := m.known.admit([3]string{rt.GVR.Group, rt.GVR.Version, rt.GVR.Resource})
	open := m.watches.WithLabelValues(gvr[:]...)
	open.Inc()
	return open
}
