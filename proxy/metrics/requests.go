package metrics

import (
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/watchproxy/watchproxy/proxy/exchange"
)

// The kinds of requests in flight, as in kube-apiserver.
const (
	mutating = "mutating"
	readOnly = "readOnly"
)

// Began counts a request in flight. The returned gauge must be decremented when it ends.
func (m *Metrics) Began(method string) prometheus.Gauge {
	kind := mutating
	switch method {
	case http.MethodGet, http.MethodHead, http.MethodOptions:
		kind = readOnly
	}
	gauge := m.inFlight.WithLabelValues(kind)
	gauge.Inc()
	return gauge
}

// Request counts an answered request, and took if it is long-running. Written records the others.
func (m *Metrics) Request(rt exchange.Route, resp *exchange.Response, took time.Duration) {
	gvr, code := m.known.admit(metricLabels(rt, resp), rt, resp.Source), resp.Status
	if resp.MetricStatus != 0 {
		code = resp.MetricStatus
	}
	label, source := exchange.CodeLabel(code), string(resp.Source)
	m.requests.WithLabelValues(rt.Verb, gvr[0], gvr[1], gvr[2], label, source).Inc()
	if resp.Long() {
		m.observe(rt, gvr, resp.Source, took)
	}
	if resp.Source == exchange.FromUpstream {
		m.forwards.WithLabelValues(rt.Verb, gvr[0], gvr[1], gvr[2], resp.Why).Inc()
		kind := Forwarded{
			Verb: rt.Verb, Group: gvr[0], Version: gvr[1], Resource: gvr[2], Reason: resp.Why,
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
		counter := m.bytes.WithLabelValues(rt.Verb, gvr[0], gvr[1], gvr[2], string(resp.Source))
		counter.Add(float64(n))
	}
}

func (m *Metrics) observe(
	rt exchange.Route, gvr [3]string, source exchange.Source, took time.Duration,
) {
	in := scope(rt, gvr)
	seconds := m.seconds.WithLabelValues(rt.Verb, gvr[0], gvr[1], gvr[2], in, string(source))
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
