package kubectl

import (
	"errors"
	"io"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/watchproxy/watchproxy/bench/clients"
	"github.com/watchproxy/watchproxy/bench/cluster"
)

// While a proxy drains, it is not ready. It ends its watches, each with the final chunk of its body
// and, for clients that want bookmarks, a bookmark that is up to date. It waits for exec and logs
// until the drain time is over. Then it cuts them, and the process ends with exit code 0.
func TestDrain(t *testing.T) {
	w := sharedWorld(t)
	ns := w.Namespace(t, "drain")
	k := startKubelet(t, w, "drain-node")
	p := w.FreshProxy(t, "drain: 2s\n")
	e := p.EndpointT(t)

	var watches []*clients.Watch
	for i := range 20 {
		query := []string{
			"resourceVersion=0",
			"resourceVersion=0&allowWatchBookmarks=true",
			"", // forwarded
			"sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true",
		}[i%4]
		watches = append(watches, clients.WatchAt(t, e, "/api/v1/namespaces/"+ns+"/configmaps?watch=1&"+query))
	}
	exec := clients.FrontOf(t, p, w.Dir)
	shell := exec.Start(t, clients.Kubectl("-n", k.namespace, "exec", "-i", k.pod, "--", "sh", "-c", "echo hello; exec cat"))
	shell.Line(t)
	logs := exec.Start(t, clients.Kubectl("-n", k.namespace, "logs", "-f", k.pod))
	log := cluster.Receive(t, "the request for logs", k.follows)

	// A watch learns about writes in other namespaces only from bookmarks.
	there := w.Namespace(t, "drain-elsewhere")
	elsewhere, err := w.Admin.CoreV1().ConfigMaps(there).Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "a"}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	e.GetT(t, "/api/v1/namespaces/"+there+"/configmaps", nil)

	clients.Terminate(t, p)
	cluster.Eventually(t, "/readyz says that the proxy shuts down", func() bool {
		status, body := clients.TryGet(t, p.AdminURL+"/readyz")
		return status == http.StatusInternalServerError && strings.Contains(string(body), "[-]shutdown failed")
	})
	cluster.Eventually(t, "all watches end", func() bool {
		return !slices.ContainsFunc(watches, func(o *clients.Watch) bool { return o.Ended() == nil })
	})
	due, err := strconv.ParseUint(elsewhere.ResourceVersion, 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	for _, o := range watches {
		if !errors.Is(o.Ended(), io.EOF) {
			t.Errorf("watch %s: %v", o.Name, o.Ended())
		}
		if last := o.Last(); strings.Contains(o.Name, "allowWatchBookmarks") && (last.Type != "BOOKMARK" || last.RV < due) {
			t.Errorf("watch %s ends with %v, not with a bookmark at %d or later", o.Name, last, due)
		}
	}
	clients.AwaitEnd(t, p)
	cluster.Receive(t, "the kubelet's request ends", log.gone)
	cluster.Eventually(t, "the command ends", func() bool { return k.open.Load() == 0 })
	logs.Wait()
	shell.Wait()
	if err := p.Stop(); err != nil {
		t.Error(err)
	}
}
