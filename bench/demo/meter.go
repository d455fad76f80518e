package main

import (
	"context"
	"fmt"
	"time"

	"k8s.io/client-go/kubernetes"

	"github.com/watchproxy/watchproxy/bench/cluster"
	"github.com/watchproxy/watchproxy/bench/workload"
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
	r, err := m.read(ctx)
	m.own = r.watchesUp
	return m, err
}

// reading has values at one moment and, of what is counted, the counts: since the start of the
// servers, or between two readings.
type reading struct {
	at                    time.Time
	watchesUp, watchesOut float64 // watchesUp according to the apiserver
	apiMemory, memory     float64 // resident bytes, of the apiserver and of the proxy

	seconds                 float64
	eventsUp, eventsOut     float64
	requestsUp, requestsOut float64
	apiBytes, apiRequests   float64 // that the apiserver has sent and answered, without writes
	apiCPU, proxyCPU        float64 // seconds
}

func (m *meter) read(ctx context.Context) (r reading, err error) {
	proxy, err := m.proxy.Metrics(ctx)
	if err != nil {
		return r, err
	}
	text, err := m.direct.RESTClient().Get().AbsPath("/metrics").DoRaw(ctx)
	if err != nil {
		return r, fmt.Errorf("cannot read the apiserver's metrics: %w", err)
	}
	api := cluster.Metrics(text)
	pods := []string{`group=""`, `version="v1"`, `resource="pods"`}
	return reading{
		at:          time.Now(),
		watchesUp:   api.Sum("apiserver_longrunning_requests", `group=""`, `resource="pods"`, `verb="WATCH"`) - m.own,
		watchesOut:  proxy.Sum("watchproxy_watches", pods...),
		apiMemory:   api.Sum("process_resident_memory_bytes"),
		memory:      proxy.Sum("process_resident_memory_bytes"),
		eventsUp:    proxy.Sum("watchproxy_feed_events_total", pods...),
		eventsOut:   proxy.Sum("watchproxy_watch_delivery_lag_seconds_count", pods...),
		requestsUp:  proxy.Sum("watchproxy_feed_requests_total") + proxy.Sum("watchproxy_requests_total", `source="upstream"`),
		requestsOut: proxy.Sum("watchproxy_requests_total"),
		// A watch counts among the response sizes at its end, and each of its events when it is sent.
		apiBytes: api.Sum("apiserver_response_sizes_sum") - api.Sum("apiserver_response_sizes_sum", `verb="WATCH"`) +
			api.Sum("apiserver_watch_events_sizes_sum"),
		apiRequests: api.Sum("apiserver_request_total") - api.Sum("apiserver_request_total", `verb="PATCH"`) +
			api.Sum("apiserver_longrunning_requests"),
		apiCPU:   api.Sum("process_cpu_seconds_total"),
		proxyCPU: proxy.Sum("process_cpu_seconds_total"),
	}, nil
}

// since returns what was counted after an earlier reading.
func (r reading) since(e reading) reading {
	return reading{
		seconds:  r.at.Sub(e.at).Seconds(),
		eventsUp: r.eventsUp - e.eventsUp, eventsOut: r.eventsOut - e.eventsOut,
		requestsUp: r.requestsUp - e.requestsUp, requestsOut: r.requestsOut - e.requestsOut,
		apiBytes: r.apiBytes - e.apiBytes, apiRequests: r.apiRequests - e.apiRequests,
		apiCPU: r.apiCPU - e.apiCPU, proxyCPU: r.proxyCPU - e.proxyCPU,
	}
}

// perSecond divides by the time between two readings.
func (r reading) perSecond() reading {
	n := r.seconds
	return reading{
		seconds: 1, eventsUp: r.eventsUp / n, eventsOut: r.eventsOut / n, requestsUp: r.requestsUp / n, requestsOut: r.requestsOut / n,
		apiBytes: r.apiBytes / n, apiRequests: r.apiRequests / n, apiCPU: r.apiCPU / n, proxyCPU: r.proxyCPU / n,
	}
}

// header stands above the lines. UP is between the proxy and the apiserver, OUT between the proxy
// and the informers.
const header = "       PODS' WATCHES     EVENTS/S     REQUESTS     DELIVERY, ms     WATCHPROXY       APISERVER\n" +
	"  TIME     UP    OUT    UP    OUT    UP    OUT    P50       P99     RSS   CPU       RSS   CPU"

// line shows a reading, what was counted since the one before it, and the times of deliveries.
func line(passed time.Duration, now, since reading, times []float64) string {
	rate := since.perSecond()
	return fmt.Sprintf("%6s %6.0f %6.0f %5.0f %6.0f %5.0f %6.0f %6.1f %9.1f %4.0f MB %3.0f %% %5.0f MB %3.0f %%",
		passed.Round(time.Second), now.watchesUp, now.watchesOut, rate.eventsUp, rate.eventsOut, now.requestsUp, now.requestsOut,
		workload.Quantile(times, 50), workload.Quantile(times, 99),
		now.memory/1e6, 100*rate.proxyCPU, now.apiMemory/1e6, 100*rate.apiCPU)
}
