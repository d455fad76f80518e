package clients

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/watchproxy/watchproxy/bench/cluster"
	"github.com/watchproxy/watchproxy/bench/workload"
)

// A proxy with little memory keeps to it, whatever is asked of it: everything by a hundred clients at once in every form; a
// resource that does not fit beside the ones it has; writes whose history does not fit. What it cannot cache it forwards,
// and what it answers is right.
func TestMemoryBudget(t *testing.T) {
	t.Parallel()
	w := ownWorld(t)
	const (
		budget         = 160 << 20
		objects, large = 1000, 40 << 10 // 41 MB of each kind
	)
	settings := file(t, fmt.Sprintf("apiVersion: watchproxy.dev/v1alpha1\nkind: ProxyConfiguration\nmemoryBudget: %d\ncache: {resources: [{name: secrets}]}\n", budget))
	binary, err := cluster.BuildProxy(t.Context(), false) // the race detector takes several times as much
	if err != nil {
		t.Fatal(err)
	}
	p := cluster.ProxyT(t, cluster.ProxyOptions{Binary: binary, Kubeconfig: w.api.Kubeconfig, Args: []string{"--config", settings}})
	ns := w.namespace(t, "memory")
	value := strings.Repeat("0123456789abcdef", large/16)
	create := func(ctx context.Context, i int) error {
		meta := metav1.ObjectMeta{Namespace: ns, Name: fmt.Sprintf("o-%05d", i), Annotations: map[string]string{"value": value}}
		if _, err := w.admin.CoreV1().ConfigMaps(ns).Create(ctx, &corev1.ConfigMap{ObjectMeta: meta}, metav1.CreateOptions{}); err != nil {
			return err
		}
		if _, err := w.admin.CoreV1().Secrets(ns).Create(ctx, &corev1.Secret{ObjectMeta: meta}, metav1.CreateOptions{}); err != nil {
			return err
		}
		_, err := w.admin.CoreV1().ServiceAccounts(ns).Create(ctx, &corev1.ServiceAccount{ObjectMeta: meta}, metav1.CreateOptions{})
		return err
	}
	const parallel = 16
	if err := workload.Parallel(t.Context(), objects, parallel, create); err != nil {
		t.Fatal(err)
	}
	keepsTo := func(what string) {
		t.Helper()
		peak, err := peakOf(p)
		if err != nil {
			t.Fatal(err)
		}
		t.Logf("%s: at most %d MiB", what, peak>>20)
		if peak > budget {
			t.Errorf("%s took %d MiB, the budget is %d MiB", what, peak>>20, budget>>20)
		}
		if err := cluster.ResetPeak(p.PID()); err != nil {
			t.Fatal(err)
		}
	}
	cached := func(resource string) bool {
		return proxyMetrics(t, p).sum("watchproxy_feed_synced", "resource", resource) > 0
	}

	everything := func(target string, header http.Header) {
		t.Helper()
		var all sync.WaitGroup
		for range 100 {
			all.Go(func() {
				status, n, err := drainBody(t.Context(), p.URL+target, header)
				if err != nil || status != http.StatusOK && status != http.StatusTooManyRequests || status == http.StatusOK && n == 0 {
					t.Errorf("%s: %d, %d bytes, %v", target, status, n, err)
				}
			})
		}
		all.Wait()
		keepsTo(fmt.Sprintf("%s %v, 100 times at once", target, header))
	}
	configmaps := "/api/v1/namespaces/" + ns + "/configmaps"
	everything(configmaps+"?resourceVersion=0", nil)
	if !cached("configmaps") {
		t.Fatal("the first resource is not cached")
	}
	everything(configmaps+"?resourceVersion=0", http.Header{"Accept-Encoding": {"gzip"}})
	everything(configmaps+"?resourceVersion=0&labelSelector=!none", http.Header{"Accept-Encoding": {"gzip"}})
	everything(configmaps+"?resourceVersion=0", http.Header{"Accept": {"application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"}})
	everything(configmaps+"?limit=3", http.Header{"Accept": {"application/yaml"}})
	everything(configmaps+"?limit=50&pretty=1", nil)

	for _, more := range []string{"secrets", "serviceaccounts"} {
		target := "/api/v1/namespaces/" + ns + "/" + more + "?resourceVersion=0"
		status, n, err := drainBody(t.Context(), p.URL+target, nil)
		if err != nil || status != http.StatusOK || n < objects*large {
			t.Errorf("%s: %d, %d bytes, %v", target, status, n, err)
		}
		keepsTo("one list of " + more)
	}
	eventually(t, "the last resource is not cached", func() bool { return !cached("serviceaccounts") })
	// It was given up while it was read, or not begun.
	if !strings.Contains(p.Log(), "no memory is left for another cache") && !strings.Contains(p.Log(), `"newCaches":false`) {
		t.Error("the log does not say why")
	}

	seen := endpointOf(t, w, p).watchAt(t, configmaps+"?watch=1&resourceVersion=0&fieldSelector=metadata.name=o-00000")
	for i := range 2 * objects { // 82 MB of history
		name := fmt.Sprintf("o-%05d", i%objects)
		if _, err := w.admin.CoreV1().ConfigMaps(ns).Patch(t.Context(), name, "application/merge-patch+json", labelPatch("n", fmt.Sprint(i)), metav1.PatchOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	const state = 1
	eventually(t, "all changes of the object that is watched", func() bool { return len(seen.events()) == state+2 })
	keepsTo("a long history")
	list, err := w.admin.CoreV1().ConfigMaps(ns).List(t.Context(), metav1.ListOptions{Limit: 1})
	if err != nil {
		t.Fatal(err)
	}
	e := endpointOf(t, w, p)
	eventually(t, "the cache has come as far as upstream", func() bool {
		return listVersion(t, e.get(t, configmaps+"?limit=1", nil)) >= list.ResourceVersion
	})
}

// peakOf is the most memory that a proxy has taken, without its program, which the kernel reads again if need be.
func peakOf(p *cluster.Proxy) (int64, error) {
	_, peak, err := cluster.MemoryOf(p.PID())
	if err != nil {
		return 0, err
	}
	program, err := cluster.ProgramOf(p.PID())
	return peak - program, err
}

// endpointOf is a proxy of the world's apiserver beside its own.
func endpointOf(t *testing.T, w *world, p *cluster.Proxy) endpoint {
	t.Helper()
	e := w.endpoints(t)[1]
	e.url = p.URL
	return e
}

// drainBody asks over a connection of its own and reads the answer as a client does that cannot keep up.
func drainBody(ctx context.Context, target string, header http.Header) (status int, n int64, err error) {
	ctx, cancel := context.WithTimeout(ctx, 3*limit)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, target, nil)
	if err != nil {
		return 0, 0, err
	}
	if header != nil {
		req.Header = header.Clone()
	}
	transport := &http.Transport{DisableCompression: true}
	defer transport.CloseIdleConnections()
	resp, err := transport.RoundTrip(req)
	if err != nil {
		return 0, 0, err
	}
	defer resp.Body.Close()
	time.Sleep(200 * time.Millisecond)
	n, err = io.Copy(io.Discard, resp.Body)
	return resp.StatusCode, n, err
}
