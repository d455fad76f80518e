package clients

import (
	"encoding/json"
	"net/http"
	"strings"
	"testing"

	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
)

// All metrics have help texts, and the metrics behind the status page's figures exist.
func TestMetrics(t *testing.T) {
	w := sharedWorld(t)
	Get(t, w.Proxy.URL+"/api/v1/pods?resourceVersion=0") // starts a feed
	Get(t, w.Proxy.URL+"/version")
	found := w.Proxy.MetricsT(t)
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(strings.NewReader(string(found)))
	if err != nil {
		t.Fatal(err)
	}
	for name, family := range families {
		if strings.TrimSpace(family.GetHelp()) == "" {
			t.Errorf("%s has no help", name)
		}
		if len(family.GetMetric()) == 0 {
			t.Errorf("%s has no values", name)
		}
	}
	pods := []string{`group=""`, `version="v1"`, `resource="pods"`}
	if n := found.Sum("watchproxy_requests_total", append(pods, `verb="list"`, `code="200"`, `source="cache"`)...); n < 1 {
		t.Errorf("%v lists of pods were answered from the cache", n)
	}
	if n := found.Sum("watchproxy_requests_total", `source="upstream"`, `code="200"`); n < 1 {
		t.Errorf("%v requests were forwarded", n)
	}
	if n := found.Sum("watchproxy_feed_requests_total", append(pods, `verb="watch"`, `code="200"`)...); n < 1 {
		t.Errorf("the feed of pods sent %v watches", n)
	}
	for _, name := range []string{"watchproxy_feed_synced", "watchproxy_feed_resource_version"} {
		if found.Sum(name, pods...) < 1 {
			t.Errorf("%s of pods is 0", name)
		}
	}
	for _, name := range []string{
		"watchproxy_feed_objects", "watchproxy_feed_object_bytes", "watchproxy_feed_last_sign_seconds", "watchproxy_feed_watches",
		"watchproxy_events_delivered_total", "watchproxy_feed_events_total", "watchproxy_request_duration_seconds",
		"go_goroutines", "process_open_fds", "process_resident_memory_bytes",
	} {
		if families[name] == nil {
			t.Errorf("there is no %s", name)
		}
	}
}

func TestStatus(t *testing.T) {
	w := sharedWorld(t)
	Get(t, w.Proxy.URL+"/api/v1/pods?resourceVersion=0")
	var status struct {
		Version, Upstream string
		Feeds             []struct {
			Group, Version, Resource string
			Synced, Failing          bool
			ResourceVersion          uint64
		}
	}
	if err := json.Unmarshal(Get(t, w.Proxy.AdminURL+"/status"), &status); err != nil {
		t.Fatal(err)
	}
	if status.Upstream != w.API.URL || status.Version == "" {
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
		if body := Get(t, w.Proxy.AdminURL+path); string(body) != "ok\n" {
			t.Errorf("%s says %q", path, body)
		}
	}
	if status, _ := TryGet(t, w.Proxy.AdminURL+"/api/v1/pods"); status != http.StatusNotFound {
		t.Errorf("the admin address answers %d to a client's request", status)
	}
}
