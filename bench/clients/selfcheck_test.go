package clients

import (
	"net/http"
	"testing"

	"github.com/watchproxy/watchproxy/bench/cluster"
)

// The self-check compares caches of all kinds with the apiserver and finds no difference.
func TestSelfCheck(t *testing.T) {
	t.Parallel()
	w := sharedWorld(t)
	w.DefineWidgets(t)
	w.Namespace(t, "self-check")
	p := w.FreshProxy(t, "cache: {selfCheckInterval: 1s}\n")
	proxy := p.EndpointT(t)
	resources := map[string]string{
		"configmaps": "/api/v1/configmaps", "namespaces": "/api/v1/namespaces", "events": "/api/v1/events",
		"leases": "/apis/coordination.k8s.io/v1/leases", "widgets": "/apis/clients.test/v1/widgets",
	}
	for name, path := range resources {
		for _, accept := range []string{
			"application/json", "application/vnd.kubernetes.protobuf,application/json", "application/json;as=Table;g=meta.k8s.io;v=v1",
		} {
			if got := proxy.GetT(t, path+"?resourceVersion=0", http.Header{"Accept": {accept}}); got.Status != http.StatusOK {
				t.Fatalf("%s: %d %s", name, got.Status, got.Body)
			}
		}
	}
	for name := range resources { // each in all encodings, twice
		cluster.Eventually(t, "the caches of "+name+" are compared", func() bool {
			return p.MetricsT(t).Sum("watchproxy_self_checks_total", cluster.Label("resource", name), `outcome="same"`) >= 6
		})
	}
	if n := p.MetricsT(t).Sum("watchproxy_self_checks_total", `outcome="different"`); n != 0 {
		t.Errorf("%v caches differ from upstream", n)
	}
}
