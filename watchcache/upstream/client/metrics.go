package client

import (
	"io"
	"net/http"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// Metrics contains the metrics of requests to upstream.
type Metrics struct {
	requests *prometheus.CounterVec
	received *prometheus.CounterVec
	sent     *prometheus.CounterVec
	seconds  *prometheus.HistogramVec
}

// NewMetrics registers the metrics. The metrics of all requests have the same names and labels as
// in other Kubernetes components.
func NewMetrics(r prometheus.Registerer) *Metrics {
	m := &Metrics{
		requests: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "watchproxy_feed_requests_total",
			Help: "Requests that feeds sent upstream, by verb (discover, probe, list, watch, " +
				"metadata, definitions (of custom resources and APIs), side-watch, ledger) " +
				"and status code; code 0 means no answer.",
		}, []string{"verb", "code", "group", "version", "resource"}),
		received: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "watchproxy_feed_received_bytes_total",
			Help: "Bytes that feeds read from the bodies of upstream's answers, " +
				"after decompression.",
		}, []string{"group", "version", "resource"}),
		sent: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "rest_client_requests_total",
			Help: "All requests to upstream (of feeds, forwarded, checks, reviews), by status " +
				"code (<error>: no answer; 5xx and the like: unknown codes), method and host.",
		}, []string{"code", "method", "host"}),
		seconds: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name:    "rest_client_request_duration_seconds",
			Help:    "Seconds until upstream's answer to a request began, by method and host.",
			Buckets: []float64{0.005, 0.025, 0.1, 0.25, 0.5, 1, 2, 4, 8, 15, 30, 60},

			NativeHistogramBucketFactor: 1.1, NativeHistogramMaxBucketNumber: 100,
			NativeHistogramMinResetDuration: time.Hour,
		}, []string{"verb", "host"}),
	}
	r.MustRegister(m.requests, m.received, m.sent, m.seconds)
	return m
}

func (m *Metrics) request(verb string, gvr schema.GroupVersionResource, code int) {
	m.requests.WithLabelValues(verb, codeLabel(code), gvr.Group, gvr.Version, gvr.Resource).Inc()
}

func (m *Metrics) body(gvr schema.GroupVersionResource, body io.ReadCloser) io.ReadCloser {
	return &countedBody{body, m.received.WithLabelValues(gvr.Group, gvr.Version, gvr.Resource)}
}

type countedBody struct {
	io.ReadCloser
	bytes prometheus.Counter
}

func (b *countedBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	b.bytes.Add(float64(n))
	return n, err
}

// Measure returns a round tripper that counts requests and sends them with through.
func (m *Metrics) Measure(through http.RoundTripper) http.RoundTripper {
	return &measured{through, m}
}

type measured struct {
	http.RoundTripper
	metrics *Metrics
}

func (t *measured) RoundTrip(req *http.Request) (*http.Response, error) {
	began := time.Now()
	resp, err := t.RoundTripper.RoundTrip(req)
	code, method := "<error>", knownMethod(req.Method)
	if err == nil {
		code = codeLabel(resp.StatusCode)
	}
	t.metrics.sent.WithLabelValues(code, method, req.URL.Host).Inc()
	t.metrics.seconds.WithLabelValues(method, req.URL.Host).Observe(time.Since(began).Seconds())
	return resp, err
}

// WrappedRoundTripper implements utilnet.RoundTripperWrapper.
func (t *measured) WrappedRoundTripper() http.RoundTripper { return t.RoundTripper }

// knownMethod returns a known method or "other", so clients cannot invent label values.
func knownMethod(method string) string {
	switch method {
	case http.MethodGet, http.MethodHead, http.MethodOptions,
		http.MethodPost, http.MethodPut, http.MethodPatch, http.MethodDelete:
		return method
	case "":
		return http.MethodGet
	}
	return "other"
}

// codeLabel labels a status code. An aggregated API may answer with any code, so codes that
// net/http does not know become their class, such as 5xx. A proxy in between writes 499.
func codeLabel(code int) string {
	const clientLeft = 499
	if code == 0 || code == clientLeft || http.StatusText(code) != "" {
		return strconv.Itoa(code)
	}
	const class = 100
	return strconv.Itoa(code/class) + "xx"
}
