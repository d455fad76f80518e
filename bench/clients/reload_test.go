package clients

import (
	"net/http"
	"strings"
	"syscall"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/watchproxy/watchproxy/bench/cluster"
)

// If the configuration file changes, settings that can change at run time change, too, and watches
// that they do not concern go on. If the file has an error, or changes another setting, nothing
// changes, and the log gives the reason.
func TestReload(t *testing.T) {
	t.Parallel()
	w := NewWorld(t)
	p := w.FreshProxy(t, "cache: {resources: [{name: secrets}]}\n")
	write := func(settings string) {
		t.Helper()
		cluster.MustT(t, p.Configure(settings))
	}
	// The proxy looks at the file every few seconds. The signal saves the wait.
	load := func(settings string) {
		t.Helper()
		write(settings)
		cluster.MustT(t, p.Signal(syscall.SIGHUP))
	}
	e := p.EndpointT(t)
	logged := func(message string) int { return strings.Count(p.Log(), `"msg":"`+message) }
	cached := func(resource string) bool { return p.CachedT(t, resource) }
	ns := w.Namespace(t, "reload")
	w.CreatePod(t, ns, cluster.NewPod("a"))
	var stay, end []*Watch
	for range 5 {
		stay = append(stay, WatchAt(t, e, "/api/v1/namespaces/"+ns+"/pods?watch=1&resourceVersion=0"))
		end = append(end, WatchAt(t, e, "/api/v1/namespaces/"+ns+"/secrets?watch=1&resourceVersion=0"))
	}
	cluster.Eventually(t, "both are cached", func() bool { return cached("pods") && cached("secrets") })

	for i, wrong := range []struct{ settings, says string }{
		{"drian: 5s\n", "drian: Forbidden: unknown field"},
		{"cache: {exclude: [Pods]}\nlimits: {maxConnections: -1}\n", "limits.maxConnections"},
		{"listen: 127.0.0.1:1\ncache: {selfCheckInterval: 7s, exclude: [pods]}\n", "cache.selfCheckInterval"},
	} {
		load(wrong.settings)
		cluster.Eventually(t, "the file is refused", func() bool { return logged("configuration is not reloaded") > i })
		if !strings.Contains(p.Log(), wrong.says) {
			t.Errorf("%q is not named: %s", wrong.says, p.Log())
		}
		if !cached("pods") || !cached("secrets") || p.MetricsT(t).Sum("watchproxy_config_refused") != 1 {
			t.Errorf("%q was refused and has changed something", wrong.settings)
		}
	}

	write("cache: {resources: [{name: pods, consistentReads: forward}]}\nlimits: {maxWatchesPerIdentity: 1}\nlogLevel: debug\n")
	cluster.Eventually(t, "the file is in effect", func() bool { return logged("configuration reloaded") > 0 })
	cluster.Eventually(t, "secrets are not cached any more", func() bool { return !cached("secrets") })
	for _, o := range end {
		cluster.Eventually(t, "watches of secrets end", func() bool { return o.Ended() != nil })
	}
	if got := e.GetT(t, "/api/v1/namespaces/"+ns+"/secrets?resourceVersion=0", nil); got.Status != http.StatusOK || cached("secrets") {
		t.Errorf("secrets: %d, cached: %t", got.Status, cached("secrets"))
	}
	if got := e.GetT(t, "/api/v1/namespaces/"+ns+"/pods?watch=1&resourceVersion=0", nil); got.Status != http.StatusTooManyRequests {
		t.Errorf("a watch beyond the limit: %d", got.Status)
	}
	runs := p.MetricsT(t).Sum("watchproxy_freshness_runs_total")
	if got := e.GetT(t, "/api/v1/namespaces/"+ns+"/pods", nil); got.Status != http.StatusOK || p.MetricsT(t).Sum("watchproxy_freshness_runs_total") != runs {
		t.Errorf("a consistent read is not forwarded: %d", got.Status)
	}

	before := logged("configuration reloaded")
	load("")
	cluster.Eventually(t, "the signal reloads", func() bool { return logged("configuration reloaded") > before })
	if p.MetricsT(t).Sum("watchproxy_config_refused") != 0 {
		t.Error("the file is in effect and said not to be")
	}
	if _, err := w.Admin.CoreV1().Pods(ns).Patch(t.Context(), "a", types.MergePatchType, LabelPatch("n", "1"), metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	for _, o := range stay {
		const state, change = 1, 1
		cluster.Eventually(t, "the change has come to each watch", func() bool { return len(o.Events()) == state+change })
		if err := o.Ended(); err != nil {
			t.Errorf("a watch that need not end has ended: %v", err)
		}
	}
}
