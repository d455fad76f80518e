package clients

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/watchproxy/watchproxy/bench/cluster"
)

// terminate sends a proxy SIGTERM.
func terminate(t *testing.T, p *cluster.Proxy) {
	t.Helper()
	if err := syscall.Kill(p.PID(), syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
}

// awaitEnd waits until a process is gone.
func awaitEnd(t *testing.T, pid int, bound time.Duration) {
	t.Helper()
	within(t, bound, "the process ends", func() bool {
		_, err := os.Stat(fmt.Sprintf("/proc/%d", pid))
		return errors.Is(err, os.ErrNotExist)
	})
}

// While it drains, a proxy is not ready and ends its watches one after another, each with the last chunk of its body,
// as it would end any other. Requests in flight are finished. Then it ends with exit code 0.
func TestDrain(t *testing.T) {
	w := sharedWorld(t)
	ns := w.namespace(t, "drain")
	k := startKubelet(t, w, "drain-node")
	const drain = 2 * time.Second
	p := w.freshProxy(t, "--config", file(t, header+"drain: "+drain.String()+"\n"))
	e := w.endpoints(t)[1]
	e.url = p.URL

	var watches []*watch
	for i := range 20 {
		query := []string{
			"resourceVersion=0",
			"resourceVersion=0&allowWatchBookmarks=true",
			"", // forwarded
			"sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true",
		}[i%4]
		watches = append(watches, e.watchAt(t, "/api/v1/namespaces/"+ns+"/configmaps?watch=1&"+query))
	}
	exec := w.fronts(t)[1]
	exec.args = []string{"--server", p.URL, "--kubeconfig", os.DevNull}
	shell := exec.start(t, kubectl("-n", k.namespace, "exec", "-i", k.pod, "--", "sh", "-c", "echo hello; exec cat"))
	shell.line(t)
	logs := exec.start(t, kubectl("-n", k.namespace, "logs", "-f", k.pod))
	log := receive(t, "the request for logs", k.follows)

	// Of what happens in another namespace, a watch learns by bookmarks only.
	there := w.namespace(t, "drain-elsewhere")
	elsewhere, err := w.admin.CoreV1().ConfigMaps(there).Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "a"}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	e.get(t, "/api/v1/namespaces/"+there+"/configmaps", nil)

	began := time.Now()
	terminate(t, p)
	unready := time.Duration(0)
	ends := make([]time.Duration, len(watches))
	within(t, drain+5*time.Second, "all watches end", func() bool {
		status, body := tryGet(t, p.AdminURL+"/readyz")
		switch {
		case status == http.StatusServiceUnavailable && unready == 0:
			unready = time.Since(began)
			if !strings.Contains(string(body), "draining") {
				t.Errorf("/readyz says %q", body)
			}
		case status == http.StatusOK && unready > 0:
			t.Error("ready again")
		}
		all := true
		for i, o := range watches {
			if o.ended() == nil {
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
		if !errors.Is(o.ended(), io.EOF) {
			t.Errorf("watch %s: %v after %v", o.name, o.ended(), ends[i])
		}
		if last := o.last(); strings.Contains(o.name, "allowWatchBookmarks") && (last.Type != "BOOKMARK" || fmt.Sprint(last.RV) < elsewhere.ResourceVersion) {
			t.Errorf("watch %s ends with %v, not with a bookmark at %s or later", o.name, last, elsewhere.ResourceVersion)
		}
		first, last = min(first, ends[i]), max(last, ends[i])
	}
	if last > drain+2*time.Second || last-first < drain/4 {
		t.Errorf("watches ended from %v to %v after the signal", first, last)
	}
	// What streams on is let go on until the drain time and a grace are over, and then cut.
	awaitEnd(t, p.PID(), drain+8*time.Second)
	receive(t, "the kubelet's request ends", log.gone)
	eventually(t, "the command ends", func() bool { return k.open.Load() == 0 })
	logs.wait()
	shell.wait()
	t.Logf("ended after %v", time.Since(began))
	if err := p.Stop(); err != nil {
		t.Error(err)
	}
}

// An idle proxy, or one whose clients only keep connections, does not use up the drain time.
func TestDrainOfIdleConnections(t *testing.T) {
	w := sharedWorld(t)
	p := w.freshProxy(t, "--config", file(t, header+"drain: 20s\n"))
	e := w.endpoints(t)[1]
	e.url = p.URL
	for _, target := range []string{"/version", "/api/v1/pods?resourceVersion=0"} {
		if a := e.get(t, target, nil); a.status != http.StatusOK {
			t.Errorf("%s: %d", target, a.status)
		}
	}
	terminate(t, p)
	awaitEnd(t, p.PID(), 5*time.Second)
	if err := p.Stop(); err != nil {
		t.Error(err)
	}
}

// A second signal ends a proxy that is draining at once.
func TestSecondSignal(t *testing.T) {
	w := sharedWorld(t)
	binary, err := cluster.BuildProxy(t.Context(), true)
	if err != nil {
		t.Fatal(err)
	}
	p, err := cluster.StartProxy(t.Context(), cluster.ProxyOptions{
		Binary: binary, Kubeconfig: w.api.Kubeconfig, Args: []string{"--config", file(t, header+"drain: 10m\n")},
	})
	if err != nil {
		t.Fatal(err)
	}
	e := w.endpoints(t)[1]
	e.url = p.URL
	e.watchAt(t, "/api/v1/pods?watch=1&resourceVersion=0")
	terminate(t, p)
	eventually(t, "it drains", func() bool {
		status, _ := tryGet(t, p.AdminURL+"/readyz")
		return status == http.StatusServiceUnavailable
	})
	terminate(t, p)
	awaitEnd(t, p.PID(), 2*time.Second)
	if err := p.Close(); err == nil || !strings.Contains(err.Error(), "exit status 1") || !strings.Contains(err.Error(), "second signal") {
		t.Errorf("it ended with %v", err)
	}
}
