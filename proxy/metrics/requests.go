package metrics

import (
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"

	"github.com/watchproxy/watchproxy/proxy/exchange"
)

// The kinds of requests in flight, as in kube-apiserver.
const (
	mutating = "mutating"
	readOnly = "readOnly"
)

// LatencyBuckets are kube-apiserver's, and three finer ones for responses from the cache.
var LatencyBuckets = []float64{
	0.0005, 0.001, 0.0025, 0.005, 0.025, 0.05, 0.1, 0.2, 0.4, 0.6, 0.8,
	1, 1.25, 1.5, 2, 3, 4, 5, 6, 8, 10, 15, 20, 30, 45, 60,
}

type requests struct {
	answered  *prometheus.CounterVec
	seconds   *prometheus.HistogramVec
	bytes     *prometheus.CounterVec
	inFlight  *prometheus.GaugeVec
	forwarded *prometheus.CounterVec
}

func newRequests(auto promauto.Factory) requests {
	m := requests{
		answered: auto.NewCounterVec(prometheus.CounterOpts{
			Name: "watchproxy_requests_total",
			Help: "Answered requests, by verb, resource, status code (of the ERROR, " +
				"for a watch of one ERROR; 499 if the client left before the answer; " +
				"5xx and the like for unknown codes) and source (cache, " +
				"upstream: forwarded, proxy: refused here).",
		}, []string{"verb", "group", "version", "resource", "code", "source"}),
		seconds: auto.NewHistogramVec(prometheus.HistogramOpts{
			Name: "watchproxy_request_duration_seconds",
			Help: "Seconds from a request's header until its answer was written, by verb, " +
				"resource, scope (resource, namespace, cluster) and source. " +
				"For watches, logs, exec, attach and port-forward: until the answer began.",
			Buckets: LatencyBuckets,
			// The native histogram has a resolution of ten percent.
			NativeHistogramBucketFactor: 1.1, NativeHistogramMaxBucketNumber: 100,
			NativeHistogramMinResetDuration: time.Hour,
		}, []string{"verb", "group", "version", "resource", "scope", "source"}),
		// Not registered: lags collects it, after it has added those of open watches.
		bytes: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "watchproxy_response_bytes_total",
			Help: "Bytes of the bodies of answers. They count when the answer has ended, " +
				"those of watches from the cache when they are written.",
		}, []string{"verb", "group", "version", "resource", "source"}),
		inFlight: auto.NewGaugeVec(prometheus.GaugeOpts{
			Name: "watchproxy_requests_in_flight",
			Help: "Requests that are being answered, by kind (mutating, readOnly). Watches, " +
				"logs, exec, attach and port-forward count until their answer begins.",
		}, []string{"request_kind"}),
		forwarded: auto.NewCounterVec(prometheus.CounterOpts{
			Name: "watchproxy_forwarded_total",
			Help: "Forwarded requests, by verb, resource and reason: not-a-read (writes, " +
				"subresources, other paths), audit (the policy wants the answer's body), " +
				"credentials (upstream has to judge the client), not-cached (the resource), " +
				"parameters, form (Accept), table, most-recent (upstream answers at less cost), " +
				"page, too-old, too-old-watch, too-large, not-up-to-date, " +
				"no-progress (upstream does not help the cache), upstream-lost.",
		}, []string{"verb", "group", "version", "resource", "reason"}),
	}
	for _, kind := range []string{mutating, readOnly} {
		m.inFlight.WithLabelValues(kind)
	}
	return m
}

// Began counts a request in flight. The returned gauge must be decremented when it ends.
func (m *Metrics) Began(method string) prometheus.Gauge {
	kind := mutating
	switch method {
	case http.MethodGet, http.MethodHead, http.MethodOptions:
		kind = readOnly
	}
	gauge := m.requests.inFlight.WithLabelValues(kind)
	gauge.Inc()
	return gauge
}

// Answered counts an answered request, and took if it is long-running. Written records the others.
func (m *Metrics) Answered(rt exchange.Route, resp *exchange.Response, took time.Duration) {
	gvr, code := m.known.admit(metricLabels(rt, resp), rt, resp.Source), resp.Status
	if resp.MetricStatus != 0 {
		code = resp.MetricStatus
	}
	label, source := exchange.CodeLabel(code), string(resp.Source)
	m.requests.answered.WithLabelValues(rt.Verb, gvr[0], gvr[1], gvr[2], label, source).Inc()
	if resp.Long() {
		m.observe(rt, gvr, resp.Source, took)
	}
	if resp.Source == exchange.FromUpstream {
		why := resp.ForwardedBecause
		m.requests.forwarded.WithLabelValues(rt.Verb, gvr[0], gvr[1], gvr[2], why).Inc()
		kind := Forwarded{
			Verb: rt.Verb, Group: gvr[0], Version: gvr[1], Resource: gvr[2], Reason: why,
		}
		m.recent.add(kind, time.Now())
	}
}

// Written counts a request whose response was written, completely or not.
func (m *Metrics) Written(rt exchange.Route, resp *exchange.Response, took time.Duration, n int64) {
	gvr := m.known.admit(metricLabels(rt, resp), rt, resp.Source)
	if !resp.Long() {
		m.observe(rt, gvr, resp.Source, took)
	}
	if _, stream := resp.Body.(exchange.Stream); !stream {
		bytes := m.requests.bytes
		bytes.WithLabelValues(rt.Verb, gvr[0], gvr[1], gvr[2], string(resp.Source)).Add(float64(n))
	}
}

func (m *Metrics) observe(
	rt exchange.Route, gvr [3]string, source exchange.Source, took time.Duration,
) {
	in := scope(rt, gvr)
	seconds := m.requests.seconds.
		WithLabelValues(rt.Verb, gvr[0], gvr[1], gvr[2], in, string(source))
	seconds.Observe(took.Seconds())
}

// scope returns the scope of a request, as in kube-apiserver's metrics: resource (one object),
// namespace or cluster. It is empty for requests without a resource's labels.
func scope(rt exchange.Route, gvr [3]string) string {
	switch {
	case gvr == [3]string{}:
		return ""
	case rt.Name != "" || rt.Verb == "create":
		return "resource"
	case rt.Namespace != "":
		return "namespace"
	}
	return "cluster"
}
