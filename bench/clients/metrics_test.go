package clients

import (
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"testing"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"

	"github.com/watchproxy/watchproxy/bench/cluster"
)

// metrics are what a server shows at /metrics, by name.
type metrics map[string]*dto.MetricFamily

func parseMetrics(t *testing.T, text []byte) metrics {
	t.Helper()
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(bytes.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	return families
}

// upstreamMetrics are the apiserver's own.
func (w *world) upstreamMetrics(t *testing.T) metrics {
	t.Helper()
	text, err := w.admin.RESTClient().Get().AbsPath("/metrics").DoRaw(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return parseMetrics(t, text)
}

func proxyMetrics(t *testing.T, p *cluster.Proxy) metrics {
	t.Helper()
	return parseMetrics(t, httpGet(t, p.AdminURL+"/metrics"))
}

// sum adds up the counters and gauges of a name that have all of the given labels, as name and value in turn.
func (m metrics) sum(name string, labels ...string) float64 {
	total := 0.0
	for _, metric := range m[name].GetMetric() {
		if hasLabels(metric, labels) {
			total += metric.GetCounter().GetValue() + metric.GetGauge().GetValue()
		}
	}
	return total
}

// by adds up the counters of a name for each value of a label.
func (m metrics) by(name, label string) map[string]float64 {
	sums := map[string]float64{}
	for _, metric := range m[name].GetMetric() {
		for _, l := range metric.GetLabel() {
			if l.GetName() == label {
				sums[l.GetValue()] += metric.GetCounter().GetValue()
			}
		}
	}
	return sums
}

func hasLabels(metric *dto.Metric, labels []string) bool {
	have := map[string]string{}
	for _, l := range metric.GetLabel() {
		have[l.GetName()] = l.GetValue()
	}
	for i := 0; i < len(labels); i += 2 {
		if have[labels[i]] != labels[i+1] {
			return false
		}
	}
	return true
}

// httpGet returns the body of an answer, which must be 200.
func httpGet(t *testing.T, url string) []byte {
	t.Helper()
	status, body := tryGet(t, url)
	if status != http.StatusOK {
		t.Fatalf("%s: %d\n%s", url, status, body)
	}
	return body
}

// tryGet returns an answer, 0 if there was none.
func tryGet(t *testing.T, url string) (status int, body []byte) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return 0, []byte(err.Error())
	}
	defer resp.Body.Close()
	if body, err = io.ReadAll(resp.Body); err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, body
}

// All metrics are documented, and those that the operator's figures are made of are there.
func TestMetrics(t *testing.T) {
	w := sharedWorld(t)
	w.proxied(t, "/api/v1/pods?resourceVersion=0") // there is a feed
	w.proxied(t, "/version")
	found := proxyMetrics(t, w.proxy)
	for name, family := range found {
		if strings.TrimSpace(family.GetHelp()) == "" {
			t.Errorf("%s has no help", name)
		}
		if len(family.GetMetric()) == 0 {
			t.Errorf("%s has no values", name)
		}
	}
	pods := []string{"group", "", "version", "v1", "resource", "pods"}
	if n := found.sum("watchproxy_requests_total", append(pods, "verb", "list", "code", "200", "source", "cache")...); n < 1 {
		t.Errorf("%v lists of pods were answered from the cache", n)
	}
	if n := found.sum("watchproxy_requests_total", "source", "upstream", "code", "200"); n < 1 {
		t.Errorf("%v requests were forwarded", n)
	}
	if n := found.sum("watchproxy_feed_requests_total", append(pods, "verb", "watch", "code", "200")...); n < 1 {
		t.Errorf("the feed of pods sent %v watches", n)
	}
	for _, name := range []string{"watchproxy_feed_synced", "watchproxy_feed_resource_version"} {
		if found.sum(name, pods...) < 1 {
			t.Errorf("%s of pods is 0", name)
		}
	}
	for _, name := range []string{
		"watchproxy_feed_objects", "watchproxy_feed_object_bytes", "watchproxy_feed_last_sign_seconds", "watchproxy_feed_watches",
		"watchproxy_events_delivered_total", "watchproxy_feed_events_total", "watchproxy_request_duration_seconds",
		"go_goroutines", "process_open_fds", "process_resident_memory_bytes",
	} {
		if found[name] == nil {
			t.Errorf("there is no %s", name)
		}
	}
}

func TestStatus(t *testing.T) {
	w := sharedWorld(t)
	w.proxied(t, "/api/v1/pods?resourceVersion=0")
	var status struct {
		Version, Upstream string
		Feeds             []struct {
			Group, Version, Resource string
			Synced, Failing          bool
			ResourceVersion          uint64
		}
	}
	if err := json.Unmarshal(httpGet(t, w.proxy.AdminURL+"/status"), &status); err != nil {
		t.Fatal(err)
	}
	if status.Upstream != w.api.URL || status.Version == "" {
		t.Errorf("upstream %q, version %q", status.Upstream, status.Version)
	}
	for _, f := range status.Feeds {
		if f.Group == "" && f.Version == "v1" && f.Resource == "pods" {
			if !f.Synced || f.Failing || f.ResourceVersion == 0 {
				t.Errorf("feed of pods: %+v", f)
			}
			return
		}
	}
	t.Errorf("no feed of pods in %+v", status.Feeds)
}

func TestHealth(t *testing.T) {
	w := sharedWorld(t)
	for _, path := range []string{"/livez", "/readyz"} {
		if body := httpGet(t, w.proxy.AdminURL+path); string(body) != "ok\n" {
			t.Errorf("%s says %q", path, body)
		}
	}
	if status, _ := tryGet(t, w.proxy.AdminURL+"/api/v1/pods"); status != http.StatusNotFound {
		t.Errorf("the admin address answers %d to a client's request", status)
	}
}
