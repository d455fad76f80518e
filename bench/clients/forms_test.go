package clients

import (
	"fmt"
	"maps"
	"regexp"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/metadata/metadatainformer"
	"k8s.io/client-go/rest"

	"github.com/watchproxy/watchproxy/bench/cluster"
)

// inProtobuf is how in-tree controllers ask.
func inProtobuf(c *rest.Config) *rest.Config {
	c = rest.CopyConfig(c)
	c.ContentType = "application/vnd.kubernetes.protobuf"
	c.AcceptContentTypes = "application/vnd.kubernetes.protobuf,application/json"
	return c
}

// schedulerLike are informers of what kube-scheduler follows.
func schedulerLike(t *testing.T, p *cluster.Proxy) informers.SharedInformerFactory {
	t.Helper()
	client, err := kubernetes.NewForConfig(inProtobuf(p.RESTConfig()))
	if err != nil {
		t.Fatal(err)
	}
	f := informers.NewSharedInformerFactory(client, 0)
	f.Core().V1().Pods().Informer()
	f.Core().V1().Nodes().Informer()
	f.Core().V1().Namespaces().Informer()
	f.Core().V1().Services().Informer()
	f.Core().V1().PersistentVolumes().Informer()
	f.Core().V1().PersistentVolumeClaims().Informer()
	f.Core().V1().ReplicationControllers().Informer()
	f.Apps().V1().ReplicaSets().Informer()
	f.Apps().V1().StatefulSets().Informer()
	f.Policy().V1().PodDisruptionBudgets().Informer()
	f.Storage().V1().StorageClasses().Informer()
	f.Storage().V1().CSINodes().Informer()
	f.Storage().V1().CSIDrivers().Informer()
	f.Storage().V1().CSIStorageCapacities().Informer()
	return f
}

// syncAll starts informers and waits until all have their state. They end with the test.
func syncAll(t *testing.T, f informers.SharedInformerFactory) {
	t.Helper()
	f.Start(t.Context().Done())
	for kind, synced := range f.WaitForCacheSync(t.Context().Done()) {
		if !synced {
			t.Errorf("%v did not sync", kind)
		}
	}
}

// A scheduler's protobuf informers sync from the cache. The next scheduler costs upstream nothing but freshness: what
// the feeds ask for as one, however many they answer.
func TestSchedulerLikeInformers(t *testing.T) {
	w := sharedWorld(t)
	p := w.secureProxy(t)
	w.createPod(t, w.namespace(t, "scheduler"), pod("one"))
	syncAll(t, schedulerLike(t, p))
	first := proxyMetrics(t, p)
	if n := first.sum("watchproxy_requests_total", "source", "upstream"); n != 0 {
		t.Errorf("%v requests were forwarded", n)
	}
	if n := first.sum("watchproxy_feed_synced", "encoding", "protobuf"); n != 14 {
		t.Errorf("%v feeds in protobuf, want 14", n)
	}
	if n := first.sum("watchproxy_feed_synced", "encoding", "json"); n != 0 {
		t.Errorf("%v feeds in JSON, want none", n)
	}
	for range 3 {
		syncAll(t, schedulerLike(t, p))
	}
	again := proxyMetrics(t, p)
	if n := again.sum("watchproxy_requests_total", "source", "upstream"); n != 0 {
		t.Errorf("%v requests were forwarded", n)
	}
	if before, after := first.sum("watchproxy_feed_requests_total", "verb", "watch"), again.sum("watchproxy_feed_requests_total", "verb", "watch"); after != before {
		t.Errorf("feeds sent %v further watches", after-before)
	}
	lists := func(m metrics) float64 {
		return m.sum("watchproxy_feed_requests_total", "verb", "list") - m.sum("watchproxy_freshness_runs_total", "outcome", "list")
	}
	if n := lists(again); n != 0 {
		t.Errorf("%v lists beside those of freshness runs", n)
	}
}

// Metadata informers, as the garbage collector's, show what there is, of built-in and of custom resources.
func TestMetadataInformers(t *testing.T) {
	w := sharedWorld(t)
	newWidgets(t, w)
	p := w.secureProxy(t)
	ns := w.namespace(t, "metadata")
	w.createPod(t, ns, pod("one"))
	client, err := metadata.NewForConfig(p.RESTConfig())
	if err != nil {
		t.Fatal(err)
	}
	f := metadatainformer.NewFilteredSharedInformerFactory(client, 0, ns, nil)
	t.Cleanup(f.Shutdown)
	ofPods, ofWidgets := newMirror(t, pods, f.ForResource(pods).Informer()), newMirror(t, widgets, f.ForResource(widgets).Informer())
	f.Start(t.Context().Done())
	f.WaitForCacheSync(t.Context().Done())
	w.createPod(t, ns, pod("two"))
	if _, err := w.dynamic.Resource(widgets).Namespace(ns).Create(t.Context(), widget("w"), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	for _, m := range []*mirror{ofPods, ofWidgets} {
		eventually(t, "metadata of "+m.gvr.Resource, func() bool { return maps.Equal(m.stored(ns), w.versions(t, m.gvr, ns)) })
	}
	if n := proxyMetrics(t, p).sum("watchproxy_requests_total", "source", "upstream"); n != 0 {
		t.Errorf("%v requests were forwarded", n)
	}
}

var ages = regexp.MustCompile(`\b(\d+[smhd])+ *\b`)

// kubectl shows the same through the proxy, over TLS, in all of its forms.
func TestKubectlForms(t *testing.T) {
	w := sharedWorld(t)
	p := w.secureProxy(t)
	config := file(t, "")
	if err := p.WriteKubeconfig(config); err != nil {
		t.Fatal(err)
	}
	fronts := w.fronts(t)
	fronts[1].args = []string{"--kubeconfig", config}
	ns := w.namespace(t, "forms")
	w.createPod(t, ns, pod("one"))
	for _, args := range [][]string{
		{"get", "pods", "-n", ns},
		{"get", "pods", "-n", ns, "-o", "wide"},
		{"get", "pods", "-n", ns, "-o", "yaml"},
		{"get", "pod", "one", "-n", ns, "-o", "json"},
		{"get", "pods", "-n", ns, "-o", "name"},
		{"get", "pods", "-A", "--chunk-size=2"},
		{"get", "pods", "-n", ns, "-o", "custom-columns=NAME:.metadata.name"},
		{"describe", "ns", ns},
	} {
		want, got := fronts[0].must(t, kubectl(args...)), fronts[1].must(t, kubectl(args...))
		if ages.ReplaceAllString(want, "AGE") != ages.ReplaceAllString(got, "AGE") {
			t.Errorf("kubectl %v\n%s\nthrough the proxy\n%s", args, want, got)
		}
	}
	for i, args := range [][]string{
		{"get", "pods", "-n", ns, "-w", "-o", "name"}, {"get", "pods", "-n", ns, "-w"}, {"get", "pods", "-n", ns, "-w", "-o", "yaml"},
	} {
		watching := fronts[1].start(t, kubectl(args...))
		for !strings.Contains(watching.line(t), "one") { // a line that does not come fails the test
		}
		name := fmt.Sprint("later-", i)
		w.createPod(t, ns, pod(name))
		for !strings.Contains(watching.line(t), name) {
		}
		watching.kill()
	}
}
