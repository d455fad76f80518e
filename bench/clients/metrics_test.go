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
	e.GetT(t, path+"?resourceVersion=0", nil)
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
	if _, err := w.Admin.CoreV1().ConfigMaps(namespace).Patch(t.Context(), "one", types.MergePatchType, LabelPatch("a", "c"), metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	partial := http.Header{"Accept": {"application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"}}
	cluster.Eventually(t, "derived bytes are kept", func() bool {
		e.GetT(t, path+"?resourceVersion=0", partial)
		return moved("watchproxy_derived_bytes") > 0
	})
	e.GetT(t, path, nil)
	watching.Leave()
	for name, labels := range map[string][]string{
		"watchproxy_connections":                            nil,
		"watchproxy_feed_log_bytes":                         configmaps,
		"watchproxy_freshness_runs_total":                   configmaps,
		"watchproxy_freshness_seconds_count":                nil,
		"watchproxy_watch_ends_total":                       append(configmaps, `reason="client"`),
		"watchproxy_request_duration_seconds_count":         append(configmaps, `verb="list"`, `scope="namespace"`, `source="cache"`),
		"watchproxy_response_bytes_total":                   append(configmaps, `verb="watch"`, `source="cache"`),
		"rest_client_requests_total":                        {`code="200"`, `method="GET"`},
		"rest_client_request_duration_seconds_count":        {`verb="GET"`},
		"watchproxy_upstream_last_answer_timestamp_seconds": nil,
		"watchproxy_feed_last_sign_timestamp_seconds":       configmaps,
	} {
		cluster.Eventually(t, name+" moves", func() bool { return moved(name, labels...) > 0 })
	}
	now := p.MetricsT(t)
	if got := now.Sum("go_gc_gomemlimit_bytes"); got != budget-budget/10 {
		t.Errorf("the garbage collector keeps to %v bytes", got)
	}
	if left := time.Until(time.Unix(int64(now.Sum("watchproxy_serving_certificate_expiration_timestamp_seconds")), 0)); left <= 0 || left > 366*24*time.Hour {
		t.Errorf("the certificate of the listener expires in %v", left)
	}
}
