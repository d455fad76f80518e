package clients

import (
	"net/http"
	"testing"
)

// Caches of all kinds compare themselves with the apiserver, while it is written to, and find no difference.
func TestSelfCheck(t *testing.T) {
	t.Parallel()
	w := sharedWorld(t)
	newWidgets(t, w)
	w.namespace(t, "self-check")
	p := w.freshProxy(t, "--config", file(t, header+"cache: {selfCheckInterval: 1s}\n"))
	proxy := w.endpoints(t)[1]
	proxy.url = p.URL
	resources := map[string]string{
		"configmaps": "/api/v1/configmaps", "namespaces": "/api/v1/namespaces", "events": "/api/v1/events",
		"leases": "/apis/coordination.k8s.io/v1/leases", "widgets": "/apis/clients.test/v1/widgets",
	}
	for name, path := range resources {
		for _, accept := range []string{"application/json", "application/vnd.kubernetes.protobuf,application/json"} {
			if got := proxy.get(t, path+"?resourceVersion=0", http.Header{"Accept": {accept}}); got.status != http.StatusOK {
				t.Fatalf("%s: %d %s", name, got.status, got.body)
			}
		}
	}
	for name := range resources {
		eventually(t, "the cache of "+name+" is compared", func() bool {
			return proxyMetrics(t, p).sum("watchproxy_self_checks_total", "resource", name, "outcome", "same") >= 2
		})
	}
	if n := proxyMetrics(t, p).sum("watchproxy_self_checks_total", "outcome", "different"); n != 0 {
		t.Errorf("%v caches differ from upstream", n)
	}
}
