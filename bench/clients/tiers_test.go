package clients

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/watchproxy/watchproxy/bench/cluster"
)

// Two proxies for nodes have another proxy as their upstream. Their credentials are those for the
// apiserver, and the certificate of their upstream has its own CA (upstream.caFile). The pods of a
// node come from its proxy's cache, and those caches share one watch of the apiserver.
func TestTiers(t *testing.T) {
	t.Parallel()
	w := sharedWorld(t)
	central := w.FreshProxy(t, "")
	ca := filepath.Join(t.TempDir(), "ca.crt")
	cluster.MustT(t, os.WriteFile(ca, central.CA, 0o600))
	ns := w.Namespace(t, "tiers")
	for i := range 2 {
		node := cluster.UniqueName("node")
		edge := w.FreshProxy(t, fmt.Sprintf("upstream: {servers: [%q], caFile: %q}\n"+
			"cache: {scopes: [{resources: [pods], fieldSelector: spec.nodeName=%s}]}\n", central.URL, ca, node))
		of := "/api/v1/pods?resourceVersion=0&fieldSelector=spec.nodeName%3D" + node
		e := edge.EndpointT(t)
		cluster.Eventually(t, "the pods of a node are cached", func() bool {
			e.GetT(t, of, nil)
			return edge.CachedT(t, "pods")
		})
		watch := WatchAt(t, e, "/api/v1/pods?watch=1&resourceVersion=0&fieldSelector=spec.nodeName%3D"+node)
		pod := cluster.NewPod("p")
		pod.Name, pod.Spec.NodeName = fmt.Sprint("p", i), node
		w.CreatePod(t, ns, pod)
		cluster.Eventually(t, "the pod of the node is delivered", func() bool { return watch.Saw("ADDED", ns+"/"+pod.Name) })
	}
	if n := central.MetricsT(t).Sum("watchproxy_feed_requests_total", cluster.Label("resource", "pods"), cluster.Label("verb", "watch")); n != 1 {
		t.Errorf("the apiserver has %v watches of pods, want 1", n)
	}
}
