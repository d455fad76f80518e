package clients

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/watchproxy/watchproxy/bench/cluster"
)

// The metrics of a request, of a watch and of upstream move with them.
func TestMetricsMove(t *testing.T) {
	w := sharedWorld(t)
	const budget = 1 << 30
	p := w.FreshProxy(t, fmt.Sprintf("memoryBudget: %d\n", budget))
	namespace := w.Namespace(t, "moving")
	before := p.MetricsT(t)
	_, first, _ := strings.Cut(p.Log(), `"msg":"starting"`)
	if first, _, _ = strings.Cut(first, "\n"); !strings.Contains(first, `"version":`) || !strings.Contains(first, `"adminListen":`) {
		t.Errorf("the line at the start has no version or no configuration: %s", first)
	}
	e := p.EndpointT(t)
	path := "/api/v1/namespaces/" + namespace + "/configmaps"
	Get(t, p.URL+path+"?resourceVersion=0")
	watching := WatchAt(t, e, path+"?watch=1&resourceVersion=0")
	moved := func(name string, labels ...string) float64 {
		t.Helper()
		return p.MetricsT(t).Sum(name, labels...) - before.Sum(name, labels...)
	}
	configmaps := []string{`version="v1"`, `resource="configmaps"`}
	cluster.Eventually(t, "the watch is open", func() bool { return moved("watchproxy_watches", configmaps...) == 1 })
	w.CreateConfigMap(t, namespace, "one", "a", "b")
	cluster.Eventually(t, "the event was delivered", func() bool { return watching.Saw("ADDED", namespace+"/one") })
	cluster.Eventually(t, "its lag was counted", func() bool {
		return moved("watchproxy_watch_delivery_lag_seconds_count", configmaps...) == 1
	})
	if n := moved("watchproxy_connections"); n < 1 {
		t.Errorf("%v more connections", n)
	}
	if _, err := w.Admin.CoreV1().ConfigMaps(namespace).Patch(t.Context(), "one", types.MergePatchType, LabelPatch("a", "c"), metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	cluster.Eventually(t, "the log keeps the object's earlier state", func() bool { return moved("watchproxy_feed_log_bytes", configmaps...) > 0 })
	partial := http.Header{"Accept": {"application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"}}
	cluster.Eventually(t, "derived bytes are kept", func() bool {
		e.GetT(t, path+"?resourceVersion=0", partial)
		return moved("watchproxy_derived_bytes") > 0
	})
	if e.GetT(t, path, nil); moved("watchproxy_freshness_runs_total", configmaps...) != 1 || moved("watchproxy_freshness_seconds_count") != 1 {
		t.Error("a read of the most recent state is not counted with its run")
	}
	watching.Leave()
	cluster.Eventually(t, "the watch has ended", func() bool {
		return moved("watchproxy_watch_ends_total", append(configmaps, `reason="client"`)...) == 1
	})
	if n := moved("watchproxy_response_bytes_total", append(configmaps, `verb="watch"`, `source="cache"`)...); n < 1 {
		t.Errorf("watches have got %v bytes", n)
	}
	for name, labels := range map[string][]string{
		"watchproxy_request_duration_seconds_count":  append(configmaps, `verb="list"`, `scope="namespace"`, `source="cache"`),
		"watchproxy_response_bytes_total":            append(configmaps, `verb="list"`, `source="cache"`),
		"rest_client_requests_total":                 {`code="200"`, `method="GET"`},
		"rest_client_request_duration_seconds_count": {`verb="GET"`},
	} {
		if n := moved(name, labels...); n < 1 {
			t.Errorf("%s has moved by %v", name, n)
		}
	}
	now := p.MetricsT(t)
	for _, name := range []string{"watchproxy_upstream_last_answer_timestamp_seconds", "watchproxy_feed_last_sign_timestamp_seconds"} {
		if now.Sum(name) <= 0 {
			t.Errorf("%s is missing", name)
		}
	}
	for _, name := range []string{"watchproxy_panics_total", "watchproxy_requests_in_flight"} {
		if n := now.Sum(name); n != 0 {
			t.Errorf("%s is %v", name, n)
		}
	}
	if got := now.Sum("go_gc_gomemlimit_bytes"); got != budget-budget/10 {
		t.Errorf("the garbage collector keeps to %v bytes", got)
	}
	if got := now.Sum("watchproxy_memory_in_use_bytes"); got <= 0 || got > budget {
		t.Errorf("%v bytes are in use", got)
	}
	if left := time.Until(time.Unix(int64(now.Sum("watchproxy_serving_certificate_expiration_timestamp_seconds")), 0)); left <= 0 || left > 366*24*time.Hour {
		t.Errorf("the certificate of the listener expires in %v", left)
	}
	if now.Sum("watchproxy_upstream_server_usable") != 1 {
		t.Error("upstream is not usable")
	}
}

func TestHealth(t *testing.T) {
	w := sharedWorld(t)
	for path, want := range map[string]string{
		"/livez": "ok", "/readyz": "ok", "/readyz/shutdown": "ok",
		"/livez?verbose":                   "[+]ping ok\nlivez check passed\n",
		"/readyz?verbose&exclude=shutdown": "[+]ping ok\n[+]startup ok\n[+]shutdown excluded: ok\n[+]caches ok\n[+]credentials ok\nreadyz check passed\n",
	} {
		if body := Get(t, w.Proxy.AdminURL+path); string(body) != want {
			t.Errorf("%s says %q", path, body)
		}
	}
	if status, _ := TryGet(t, w.Proxy.AdminURL+"/api/v1/pods"); status != http.StatusNotFound {
		t.Errorf("the admin address answers %d to a client's request", status)
	}
}
