package main

import (
	"context"
	"fmt"
	"time"

	"k8s.io/client-go/kubernetes"

	"github.com/watchproxy/watchproxy/bench/cluster"
)

// meter reads the metrics of the apiserver and the proxy.
type meter struct {
	direct *kubernetes.Clientset
	proxy  *cluster.Proxy
	own    float64 // watches on pods that the apiserver holds for itself: its node authorizer needs them
}

// newMeter must be called while only the apiserver itself watches pods.
func newMeter(ctx context.Context, direct *kubernetes.Clientset, proxy *cluster.Proxy) (*meter, error) {
	m := &meter{direct: direct, proxy: proxy}
	api, err := m.readAPIServer(ctx)
	if err != nil {
		return nil, err
	}
	m.own = podWatches(api)
	return m, nil
}

// reading has the values of all counters at one moment.
type reading struct {
	at time.Time

	watchesUp, watchesDown   float64 // watchesUp according to the apiserver
	eventsUp, eventsDown     float64
	requestsUp, requestsDown float64
	cached                   float64 // of requestsDown, those answered from the cache
	objects, bytes           float64 // in the cache
	apiBytes, apiRequests    float64 // that the apiserver has sent and answered, without writes
	proxy, api               process

	delivered, due int64 // handler calls
	delivery, ack  histogram
	failures       int64 // of informers' lists and watches
}

// process is the cost of a process.
type process struct {
	memory float64 // resident bytes
	cpu    float64 // seconds
}

func (m *meter) read(ctx context.Context) (*reading, error) {
	proxy, err := m.proxy.Metrics(ctx)
	if err != nil {
		return nil, err
	}
	api, err := m.readAPIServer(ctx)
	if err != nil {
		return nil, err
	}
	pods := []string{`group=""`, `version="v1"`, `resource="pods"`}
	forwarded := proxy.Sum("watchproxy_requests_total", `source="upstream"`)
	return &reading{
		at:           time.Now(),
		watchesUp:    podWatches(api) - m.own,
		watchesDown:  proxy.Sum("watchproxy_watches", pods...),
		eventsUp:     proxy.Sum("watchproxy_feed_events_total", pods...),
		eventsDown:   proxy.Sum("watchproxy_watch_delivery_lag_seconds_count", pods...),
		requestsUp:   proxy.Sum("watchproxy_feed_requests_total") + forwarded,
		requestsDown: proxy.Sum("watchproxy_requests_total"),
		cached:       proxy.Sum("watchproxy_requests_total", `source="cache"`),
		objects:      proxy.Sum("watchproxy_feed_objects"),
		bytes:        proxy.Sum("watchproxy_feed_object_bytes"),
		proxy:        processOf(proxy),
		api:          processOf(api),
		// A watch counts among the response sizes at its end, and each of its events when it is sent.
		apiBytes: api.Sum("apiserver_response_sizes_sum") - api.Sum("apiserver_response_sizes_sum", `verb="WATCH"`) +
			api.Sum("apiserver_watch_events_sizes_sum"),
		apiRequests: api.Sum("apiserver_request_total") - api.Sum("apiserver_request_total", `verb="PATCH"`) +
			api.Sum("apiserver_longrunning_requests"),
	}, nil
}

func (m *meter) readAPIServer(ctx context.Context) (cluster.Metrics, error) {
	b, err := m.direct.RESTClient().Get().AbsPath("/metrics").DoRaw(ctx)
	if err != nil {
		return "", fmt.Errorf("cannot read the apiserver's metrics: %w", err)
	}
	return cluster.Metrics(b), nil
}

func podWatches(api cluster.Metrics) float64 {
	return api.Sum("apiserver_longrunning_requests", `group=""`, `resource="pods"`, `verb="WATCH"`)
}

func processOf(m cluster.Metrics) process {
	return process{memory: m.Sum("process_resident_memory_bytes"), cpu: m.Sum("process_cpu_seconds_total")}
}
