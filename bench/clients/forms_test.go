package clients

import (
	"maps"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/metadata/metadatainformer"
	"k8s.io/client-go/rest"

	"github.com/watchproxy/watchproxy/bench/cluster"
)

// patient are settings by which the cache answers each read that it can, however long its feeds take
// to start.
const patient = "cache: {syncTimeout: 1m}\n"

// inProtobuf makes a client ask for protobuf, like in-tree controllers.
func inProtobuf(c *rest.Config) *rest.Config {
	c = rest.CopyConfig(c)
	c.ContentType = "application/vnd.kubernetes.protobuf"
	c.AcceptContentTypes = "application/vnd.kubernetes.protobuf,application/json"
	return c
}

// schedulerLike returns informers of the resources that kube-scheduler follows.
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

// syncAll starts informers and waits until all have synced. They end with the test.
func syncAll(t *testing.T, f informers.SharedInformerFactory) {
	t.Helper()
	f.Start(t.Context().Done())
	for kind, synced := range f.WaitForCacheSync(t.Context().Done()) {
		if !synced {
			t.Errorf("%v did not sync", kind)
		}
	}
}

// A scheduler's protobuf informers sync from the cache. A second scheduler costs upstream only
// freshness proofs, and one proof serves any number of clients.
func TestSchedulerLikeInformers(t *testing.T) {
	t.Parallel()
	w := sharedWorld(t)
	p := w.FreshProxy(t, patient)
	w.CreatePod(t, w.Namespace(t, "scheduler"), cluster.NewPod("one"))
	syncAll(t, schedulerLike(t, p))
	first := p.MetricsT(t)
	if n := first.Sum("watchproxy_requests_total", `source="upstream"`); n != 0 {
		t.Errorf("%v requests were forwarded", n)
	}
	if n := first.Sum("watchproxy_feed_synced", `encoding="protobuf"`); n != 14 {
		t.Errorf("%v feeds in protobuf, want 14", n)
	}
	if n := first.Sum("watchproxy_feed_synced", `encoding="json"`); n != 0 {
		t.Errorf("%v feeds in JSON, want none", n)
	}
	for range 3 {
		syncAll(t, schedulerLike(t, p))
	}
	again := p.MetricsT(t)
	if n := again.Sum("watchproxy_requests_total", `source="upstream"`); n != 0 {
		t.Errorf("%v requests were forwarded", n)
	}
	if before, after := first.Sum("watchproxy_feed_requests_total", `verb="watch"`), again.Sum("watchproxy_feed_requests_total", `verb="watch"`); after != before {
		t.Errorf("feeds sent %v further watches", after-before)
	}
	lists := func(m cluster.Metrics) float64 {
		return m.Sum("watchproxy_feed_requests_total", `verb="list"`) - m.Sum("watchproxy_freshness_runs_total", `outcome="list"`)
	}
	if n := lists(again); n != 0 {
		t.Errorf("%v lists beside those of freshness runs", n)
	}
}

// Metadata informers, such as those of the garbage collector, show all objects of built-in and of
// custom resources.
func TestMetadataInformers(t *testing.T) {
	t.Parallel()
	w := sharedWorld(t)
	w.DefineWidgets(t)
	p := w.FreshProxy(t, patient)
	ns := w.Namespace(t, "metadata")
	w.CreatePod(t, ns, cluster.NewPod("one"))
	client, err := metadata.NewForConfig(p.RESTConfig())
	if err != nil {
		t.Fatal(err)
	}
	f := metadatainformer.NewFilteredSharedInformerFactory(client, 0, ns, nil)
	t.Cleanup(f.Shutdown)
	ofPods, ofWidgets := newMirror(t, pods, f.ForResource(pods).Informer()), newMirror(t, Widgets, f.ForResource(Widgets).Informer())
	f.Start(t.Context().Done())
	f.WaitForCacheSync(t.Context().Done())
	w.CreatePod(t, ns, cluster.NewPod("two"))
	if _, err := w.Dynamic.Resource(Widgets).Namespace(ns).Create(t.Context(), NewWidget("w"), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	for _, m := range []*mirror{ofPods, ofWidgets} {
		cluster.Eventually(t, "metadata of "+m.gvr.Resource, func() bool { return maps.Equal(m.stored(ns), versions(t, w, m.gvr, ns)) })
	}
	if n := p.MetricsT(t).Sum("watchproxy_requests_total", `source="upstream"`); n != 0 {
		t.Errorf("%v requests were forwarded", n)
	}
}
