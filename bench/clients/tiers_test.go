package clients

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"testing"

	"github.com/watchproxy/watchproxy/bench/cluster"
)

// Two proxies for nodes have another proxy as their upstream. Their credentials are those for the
// apiserver, and the certificate of their upstream has its own CA (upstream.caFile). The pods of a
// node come from its proxy's cache, and those caches share one watch of the apiserver. The command
// status --tree shows the proxies of the nodes below the other one, with the lag of each.
func TestTiers(t *testing.T) {
	t.Parallel()
	w := sharedWorld(t)
	central := w.FreshProxy(t, "")
	ca := filepath.Join(t.TempDir(), "ca.crt")
	if err := os.WriteFile(ca, central.CA, 0o600); err != nil {
		t.Fatal(err)
	}
	ns := w.Namespace(t, "tiers")
	nodes := [2]string{cluster.UniqueName("node"), cluster.UniqueName("node")}
	var edges [2]*cluster.Proxy
	for i, node := range nodes {
		edges[i] = w.FreshProxy(t, fmt.Sprintf("upstream: {servers: [%q], caFile: %q}\n"+
			"cache: {scopes: [{resources: [pods], fieldSelector: spec.nodeName=%s}]}\n", central.URL, ca, node))
		of := "/api/v1/pods?resourceVersion=0&fieldSelector=spec.nodeName%3D" + node
		e := edges[i].EndpointT(t)
		cluster.Eventually(t, "the pods of a node are cached", func() bool {
			e.GetT(t, of, nil)
			return edges[i].CachedT(t, "pods")
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
	binary, err := cluster.BuildProxy(t.Context(), true)
	if err != nil {
		t.Fatal(err)
	}
	const lag, figures = ` +[0-9.]+ m?s +[0-9.]+ m?s `, ` +\S+ +\d+ +\d+ +\d+`
	want := regexp.MustCompile(`(?s)\n` + regexp.QuoteMeta(w.API.URL) + `\s*\n└─ ` + regexp.QuoteMeta(central.AdminURL) + figures + lag +
		`[^\n]*\n   ├─ ` + regexp.QuoteMeta(edges[0].AdminURL) + figures + lag + `[^\n]*\n   └─ ` + regexp.QuoteMeta(edges[1].AdminURL) + figures + lag)
	cluster.Eventually(t, "each proxy has delivered an event, and the tree shows its lag: "+want.String(), func() bool {
		out, err := exec.CommandContext(t.Context(), binary, "status", "--tree", central.AdminURL, edges[0].AdminURL, edges[1].AdminURL).CombinedOutput()
		if err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		return want.Match(out)
	})
}
