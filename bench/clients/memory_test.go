//go:build verify

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

// A proxy with little memory stays within its budget while three things happen: a hundred clients
// concurrently read everything in every form, there is a resource too many to cache, and writes
// produce more history than fits. The proxy forwards requests for the resource that it cannot
// cache, and its answers are correct.
func TestMemoryBudget(t *testing.T) {
	t.Parallel()
	w := NewWorld(t)
	const (
		budget         = 160 << 20
		objects, large = 1000, 40 << 10 // 41 MB for each kind of object
	)
	p := cluster.ProxyT(t, cluster.ProxyOptions{
		Kubeconfig: w.API.Kubeconfig, TLS: true, NoRace: true, // the race detector takes several times as much memory
		Settings: fmt.Sprintf("memoryBudget: %d\ncache: {resources: [{name: secrets}]}\n", budget),
	})
	ns := w.Namespace(t, "memory")
	value := strings.Repeat("0123456789abcdef", large/16)
	create := func(ctx context.Context, i int) error {
		meta := metav1.ObjectMeta{Namespace: ns, Name: fmt.Sprintf("o-%05d", i), Annotations: map[string]string{"value": value}}
		if _, err := w.Admin.CoreV1().ConfigMaps(ns).Create(ctx, &corev1.ConfigMap{ObjectMeta: meta}, metav1.CreateOptions{}); err != nil {
			return err
		}
		if _, err := w.Admin.CoreV1().Secrets(ns).Create(ctx, &corev1.Secret{ObjectMeta: meta}, metav1.CreateOptions{}); err != nil {
			return err
		}
		_, err := w.Admin.CoreV1().ServiceAccounts(ns).Create(ctx, &corev1.ServiceAccount{ObjectMeta: meta}, metav1.CreateOptions{})
		return err
	}
	const parallel = 16
	cluster.MustT(t, workload.Parallel(t.Context(), objects, parallel, create))
	keepsTo := func(what string) {
		t.Helper()
		peak, err := peakOf(p)
		cluster.MustT(t, err)
		t.Logf("%s: at most %d MiB", what, peak>>20)
		if peak > budget {
			t.Errorf("%s took %d MiB, the budget is %d MiB", what, peak>>20, budget>>20)
		}
		cluster.MustT(t, cluster.ResetPeak(p.PID()))
	}
	everything := func(target string, header http.Header) {
		t.Helper()
		var all sync.WaitGroup
		for range 100 {
			all.Go(func() {
				status, n, err := drainBody(t.Context(), p, target, header)
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
	if !p.CachedT(t, "configmaps") {
		t.Fatal("the first resource is not cached")
	}
	everything(configmaps+"?resourceVersion=0", http.Header{"Accept-Encoding": {"gzip"}})
	everything(configmaps+"?resourceVersion=0&labelSelector=!none", http.Header{"Accept-Encoding": {"gzip"}})
	everything(configmaps+"?resourceVersion=0", http.Header{"Accept": {"application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"}})
	everything(configmaps+"?limit=3", http.Header{"Accept": {"application/yaml"}})

	for _, more := range []string{"secrets", "serviceaccounts"} {
		target := "/api/v1/namespaces/" + ns + "/" + more + "?resourceVersion=0"
		status, n, err := drainBody(t.Context(), p, target, nil)
		if err != nil || status != http.StatusOK || n < objects*large {
			t.Errorf("%s: %d, %d bytes, %v", target, status, n, err)
		}
		keepsTo("one list of " + more)
	}
	cluster.Eventually(t, "the last resource is not cached", func() bool { return !p.CachedT(t, "serviceaccounts") })
	// The proxy either stopped reading this resource or never started.
	if !strings.Contains(p.Log(), "no memory is left for the cache") && !strings.Contains(p.Log(), `"newCaches":false`) {
		t.Error("the log does not say why")
	}

	seen := WatchAt(t, p.EndpointT(t), configmaps+"?watch=1&resourceVersion=0&fieldSelector=metadata.name=o-00000")
	for i := range 2 * objects { // 82 MB of history
		name := fmt.Sprintf("o-%05d", i%objects)
		if _, err := w.Admin.CoreV1().ConfigMaps(ns).Patch(t.Context(), name, "application/merge-patch+json", LabelPatch("n", fmt.Sprint(i)), metav1.PatchOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	const state = 1
	cluster.Eventually(t, "all changes of the object that is watched", func() bool { return len(seen.Events()) == state+2 })
	keepsTo("a long history")
	list, err := w.Admin.CoreV1().ConfigMaps(ns).List(t.Context(), metav1.ListOptions{Limit: 1})
	cluster.MustT(t, err)
	e := p.EndpointT(t)
	cluster.Eventually(t, "the cache has come as far as upstream", func() bool {
		return Number(t, ListVersion(t, e.GetT(t, configmaps+"?limit=1", nil))) >= Number(t, list.ResourceVersion)
	})
}

// peakOf returns a proxy's peak memory without its program file, which the kernel can drop and read
// again.
func peakOf(p *cluster.Proxy) (int64, error) {
	_, peak, err := cluster.MemoryOf(p.PID())
	if err != nil {
		return 0, err
	}
	program, err := cluster.ProgramOf(p.PID())
	return peak - program, err
}

// drainBody sends a request on a connection of its own and reads the answer slowly.
func drainBody(ctx context.Context, p *cluster.Proxy, target string, header http.Header) (status int, n int64, err error) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Minute)
	defer cancel()
	e := cluster.NewEndpoint("proxy", p.URL, "", cluster.Trust(p.CA))
	defer e.CloseIdle()
	resp, err := e.Open(ctx, cluster.Request{Target: target, Header: header})
	if err != nil {
		return 0, 0, err
	}
	defer resp.Body.Close()
	time.Sleep(200 * time.Millisecond) // this client is slow
	n, err = io.Copy(io.Discard, resp.Body)
	return resp.StatusCode, n, err
}
