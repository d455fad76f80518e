package clients

import (
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/watchproxy/watchproxy/bench/cluster"
)

// What can change while the proxy runs changes with its file, and watches that need not end go on. A file with something
// wrong in it, or with what cannot change, changes nothing and says why.
func TestReload(t *testing.T) {
	t.Parallel()
	w := ownWorld(t)
	path := filepath.Join(t.TempDir(), "config.yaml")
	write := func(settings string) {
		t.Helper()
		// As a ConfigMap changes: at once or not at all.
		content := []byte("apiVersion: watchproxy.dev/v1alpha1\nkind: ProxyConfiguration\n" + settings)
		if err := os.WriteFile(path+".new", content, 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(path+".new", path); err != nil {
			t.Fatal(err)
		}
	}
	write("cache: {resources: [{name: secrets}]}\n")
	binary, err := cluster.BuildProxy(t.Context(), true)
	if err != nil {
		t.Fatal(err)
	}
	p := cluster.ProxyT(t, cluster.ProxyOptions{Binary: binary, Kubeconfig: w.api.Kubeconfig, Args: []string{"--config", path}})
	e := endpointOf(t, w, p)
	reloads := func(outcome string) float64 {
		return proxyMetrics(t, p).sum("watchproxy_config_reloads_total", "outcome", outcome)
	}
	cached := func(resource string) bool {
		return proxyMetrics(t, p).sum("watchproxy_feed_synced", "resource", resource) > 0
	}
	ns := w.namespace(t, "reload")
	w.createPod(t, ns, pod("a"))
	var stay, end []*watch
	for range 20 {
		stay = append(stay, e.watchAt(t, "/api/v1/namespaces/"+ns+"/pods?watch=1&resourceVersion=0"))
		end = append(end, e.watchAt(t, "/api/v1/namespaces/"+ns+"/secrets?watch=1&resourceVersion=0"))
	}
	eventually(t, "both are cached", func() bool { return cached("pods") && cached("secrets") })

	for i, wrong := range []struct{ settings, says string }{
		{"drian: 5s\n", "drian: Forbidden: unknown field"},
		{"cache: {exclude: [Pods]}\nlimits: {writeTimeout: -1s}\n", "limits.writeTimeout"},
		{"listen: 127.0.0.1:1\ncache: {persistence: {interval: 7s}, exclude: [pods]}\n", "cache.persistence.interval"},
	} {
		write(wrong.settings)
		eventually(t, "the file is refused", func() bool { return reloads("refused") >= float64(i+1) })
		if !strings.Contains(p.Log(), wrong.says) {
			t.Errorf("%q is not named: %s", wrong.says, p.Log())
		}
		if !cached("pods") || !cached("secrets") || proxyMetrics(t, p).sum("watchproxy_config_refused") != 1 {
			t.Errorf("%q was refused and has changed something", wrong.settings)
		}
	}

	write("cache: {resources: [{name: pods, consistentReads: forward}]}\nlimits: {maxURIBytes: 4Ki}\nlogLevel: debug\n")
	eventually(t, "the file is in effect", func() bool { return reloads("applied") == 1 })
	eventually(t, "secrets are not cached any more", func() bool { return !cached("secrets") })
	for _, o := range end {
		eventually(t, "watches of secrets end", func() bool { return o.ended() != nil })
	}
	if got := e.get(t, "/api/v1/namespaces/"+ns+"/secrets?resourceVersion=0", nil); got.status != http.StatusOK || cached("secrets") {
		t.Errorf("secrets: %d, cached: %t", got.status, cached("secrets"))
	}
	if got := e.get(t, "/api/v1/pods?labelSelector="+strings.Repeat("a", 5<<10), nil); got.status != http.StatusRequestURITooLong {
		t.Errorf("a long URI: %d", got.status)
	}
	runs := proxyMetrics(t, p).sum("watchproxy_freshness_runs_total")
	if got := e.get(t, "/api/v1/namespaces/"+ns+"/pods", nil); got.status != http.StatusOK || proxyMetrics(t, p).sum("watchproxy_freshness_runs_total") != runs {
		t.Errorf("a consistent read is not forwarded: %d", got.status)
	}

	write("")
	if err := syscall.Kill(p.PID(), syscall.SIGHUP); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the signal reloads", func() bool { return reloads("applied") == 2 })
	if proxyMetrics(t, p).sum("watchproxy_config_refused") != 0 {
		t.Error("the file is in effect and said not to be")
	}
	if _, err := w.admin.CoreV1().Pods(ns).Patch(t.Context(), "a", types.MergePatchType, labelPatch("n", "1"), metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	for _, o := range stay {
		const state, change = 1, 1
		eventually(t, "the change has come to each watch", func() bool { return len(o.events()) == state+change })
		if err := o.ended(); err != nil {
			t.Errorf("a watch that need not end has ended: %v", err)
		}
	}
}
