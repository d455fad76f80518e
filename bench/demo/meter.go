package main

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"time"

	"k8s.io/client-go/kubernetes"
)

// meter reads what the apiserver and the proxy tell about themselves.
type meter struct {
	direct   *kubernetes.Clientset
	proxyURL string
	own      float64 // watches on pods that the apiserver holds for itself: its node authorizer needs them
}

// newMeter has to be called while nobody but the apiserver itself watches pods.
func newMeter(ctx context.Context, direct *kubernetes.Clientset, adminURL string) (*meter, error) {
	m := &meter{direct: direct, proxyURL: adminURL + "/metrics"}
	page, err := m.readAPIServer(ctx)
	if err != nil {
		return nil, err
	}
	m.own = podWatches(page)
	return m, nil
}

// reading is what all counters showed at one moment.
type reading struct {
	at time.Time

	watchesUp, watchesDown   float64 // the former by the apiserver's own account
	eventsUp, eventsDown     float64
	requestsUp, requestsDown float64
	cached                   float64 // of requestsDown, those answered from the cache
	objects, bytes           float64 // in the cache
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
	proxy, err := m.readProxy(ctx)
	if err != nil {
		return nil, err
	}
	api, err := m.readAPIServer(ctx)
	if err != nil {
		return nil, err
	}
	pods := []string{`group=""`, `version="v1"`, `resource="pods"`}
	forwarded := proxy.sum("watchproxy_requests_total", `source="upstream"`)
	return &reading{
		at:           time.Now(),
		watchesUp:    podWatches(api) - m.own,
		watchesDown:  proxy.sum("watchproxy_watches", pods...),
		eventsUp:     proxy.sum("watchproxy_feed_events_total", pods...),
		eventsDown:   proxy.sum("watchproxy_events_delivered_total", pods...),
		requestsUp:   proxy.sum("watchproxy_feed_requests_total") + forwarded,
		requestsDown: proxy.sum("watchproxy_requests_total"),
		cached:       proxy.sum("watchproxy_requests_total", `source="cache"`),
		objects:      proxy.sum("watchproxy_feed_objects"),
		bytes:        proxy.sum("watchproxy_feed_object_bytes"),
		proxy:        proxy.process(),
		api:          api.process(),
	}, nil
}

func (m *meter) readAPIServer(ctx context.Context) (page, error) {
	b, err := m.direct.RESTClient().Get().AbsPath("/metrics").DoRaw(ctx)
	if err != nil {
		return "", fmt.Errorf("cannot read the apiserver's metrics: %w", err)
	}
	return page(b), nil
}

func (m *meter) readProxy(ctx context.Context) (page, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, m.proxyURL, nil)
	if err != nil {
		return "", err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return "", fmt.Errorf("cannot read watchproxy's metrics: %w", err)
	}
	defer resp.Body.Close() //nolint:errcheck // what was read is what counts
	b, err := io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %s", resp.Status, b)
	}
	if err != nil {
		return "", fmt.Errorf("cannot read watchproxy's metrics: %w", err)
	}
	return page(b), nil
}

func podWatches(api page) float64 {
	return api.sum("apiserver_longrunning_requests", `group=""`, `resource="pods"`, `verb="WATCH"`)
}

// page is metrics in Prometheus' text format. It is scanned for a few of them: the apiserver's has many thousand lines,
// and taking all apart once a second would be seen in the figures.
type page string

// sum adds up the metric's samples that have all of the labels, each given as name="value".
func (p page) sum(metric string, labels ...string) float64 {
	var total float64
	for rest := string(p); ; {
		at := strings.Index(rest, "\n"+metric)
		if at < 0 {
			return total
		}
		rest = rest[at+1+len(metric):]
		line, _, _ := strings.Cut(rest, "\n")
		total += sample(line, labels)
	}
}

// sample returns the value of a line without its metric's name; 0 if that was but the beginning of the name, or a label
// differs.
func sample(line string, labels []string) float64 {
	has, value, ok := strings.Cut(line, " ")
	if end := strings.LastIndex(line, "} "); end >= 0 {
		has, value, ok = line[:end], line[end+2:], line[0] == '{'
	}
	if !ok || has != "" && has[0] != '{' {
		return 0
	}
	for _, l := range labels {
		if !strings.Contains(has, "{"+l) && !strings.Contains(has, ","+l) {
			return 0
		}
	}
	v, err := strconv.ParseFloat(value, 64)
	if err != nil {
		return 0
	}
	return v
}

func (p page) process() process {
	return process{memory: p.sum("process_resident_memory_bytes"), cpu: p.sum("process_cpu_seconds_total")}
}
