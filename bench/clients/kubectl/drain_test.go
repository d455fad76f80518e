package kubectl

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/watchproxy/watchproxy/bench/clients"
	"github.com/watchproxy/watchproxy/bench/cluster"
)

// While a proxy drains, it is not ready. It ends its watches one after another, each with the final
// chunk of its body, and finishes requests in flight. Then the process ends with exit code 0.
func TestDrain(t *testing.T) {
	w := sharedWorld(t)
	ns := w.Namespace(t, "drain")
	k := startKubelet(t, w, "drain-node")
	const drain = 2 * time.Second
	p := w.FreshProxy(t, "drain: "+drain.String()+"\n")
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

	began := time.Now()
	clients.Terminate(t, p)
	unready := time.Duration(0)
	ends := make([]time.Duration, len(watches))
	cluster.Within(t, drain+5*time.Second, "all watches end", func() bool {
		status, body := clients.TryGet(t, p.AdminURL+"/readyz")
		switch {
		case status == http.StatusInternalServerError && unready == 0:
			unready = time.Since(began)
			if !strings.Contains(string(body), "[-]shutdown failed") {
				t.Errorf("/readyz says %q", body)
			}
		case status == http.StatusOK && unready > 0:
			t.Error("ready again")
		}
		all := true
		for i, o := range watches {
			if o.Ended() == nil {
				all = false
			} else if ends[i] == 0 {
				ends[i] = time.Since(began)
			}
		}
		return all
	})
	if unready == 0 || unready > 2*time.Second {
		t.Errorf("not ready after %v", unready)
	}
	first, last := ends[0], ends[0]
	for i, o := range watches {
		if !errors.Is(o.Ended(), io.EOF) {
			t.Errorf("watch %s: %v after %v", o.Name, o.Ended(), ends[i])
		}
		if last := o.Last(); strings.Contains(o.Name, "allowWatchBookmarks") && (last.Type != "BOOKMARK" || fmt.Sprint(last.RV) < elsewhere.ResourceVersion) {
			t.Errorf("watch %s ends with %v, not with a bookmark at %s or later", o.Name, last, elsewhere.ResourceVersion)
		}
		first, last = min(first, ends[i]), max(last, ends[i])
	}
	if last > drain+2*time.Second || last-first < drain/4 {
		t.Errorf("watches ended from %v to %v after the signal", first, last)
	}
	// Streams continue until the drain time and a grace period are over. Then the proxy cuts them.
	clients.AwaitEnd(t, p, drain+8*time.Second)
	cluster.Receive(t, "the kubelet's request ends", log.gone)
	cluster.Eventually(t, "the command ends", func() bool { return k.open.Load() == 0 })
	logs.Wait()
	shell.Wait()
	t.Logf("ended after %v", time.Since(began))
	if err := p.Stop(); err != nil {
		t.Error(err)
	}
}
