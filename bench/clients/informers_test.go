package clients

import (
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/dynamic/dynamicinformer"
	"k8s.io/client-go/features"
	featurestesting "k8s.io/client-go/features/testing"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/metadata/metadatainformer"
	"k8s.io/client-go/tools/cache"

	"github.com/watchproxy/watchproxy/bench/cluster"
)

// Informers behind the proxy have upstream's state in the end, in every form and whichever way they
// read their first state, even if the proxy is killed, and if it restarts.
func TestInformers(t *testing.T) {
	w := sharedWorld(t)
	w.DefineWidgets(t)
	for _, streaming := range []bool{false, true} {
		t.Run(fmt.Sprintf("WatchListClient=%t", streaming), func(t *testing.T) {
			featurestesting.SetFeatureDuringTest(t, features.WatchListClient, streaming)
			testInformers(t, w, w.Namespace(t, fmt.Sprintf("informers-%t", streaming)))
		})
	}
}

func testInformers(t *testing.T, w *World, ns string) {
	proxy := w.FreshProxy(t, "drain: 500ms\n")
	writer := &objectWriter{world: w, namespace: ns, live: map[schema.GroupVersionResource][]string{}}
	writer.random = rand.New(rand.NewPCG(cluster.Seed(), 0))
	const some = 60
	writer.write(t, some)

	inJSON := proxy.RESTConfig()
	inJSON.ContentType = "application/json"
	client := kubernetes.NewForConfigOrDie(inJSON)
	loose, err := dynamic.NewForConfig(proxy.RESTConfig())
	cluster.MustT(t, err)
	factory := informers.NewSharedInformerFactoryWithOptions(client, 0, informers.WithNamespace(ns))
	inProtobuf := proxy.RESTConfig() // like in-tree controllers
	inProtobuf.ContentType, inProtobuf.AcceptContentTypes = "application/vnd.kubernetes.protobuf", "application/vnd.kubernetes.protobuf,application/json"
	everything := informers.NewSharedInformerFactory(kubernetes.NewForConfigOrDie(inProtobuf), 0)
	shallow, err := metadata.NewForConfig(proxy.RESTConfig())
	cluster.MustT(t, err)
	shallowly := metadatainformer.NewFilteredSharedInformerFactory(shallow, 0, ns, nil)
	loosely := dynamicinformer.NewFilteredDynamicSharedInformerFactory(loose, 0, ns, nil)
	mirrors := []*mirror{
		newMirror(t, pods, factory.Core().V1().Pods().Informer()),
		newMirror(t, pods, everything.Core().V1().Pods().Informer()),
		newMirror(t, configs, factory.Core().V1().ConfigMaps().Informer()),
		newMirror(t, pods, loosely.ForResource(pods).Informer()),
		newMirror(t, Widgets, loosely.ForResource(Widgets).Informer()),
		newMirror(t, pods, shallowly.ForResource(pods).Informer()),
		newMirror(t, Widgets, shallowly.ForResource(Widgets).Informer()),
	}
	for _, f := range []interface {
		Start(stop <-chan struct{})
		Shutdown()
	}{factory, everything, loosely, shallowly} {
		f.Start(t.Context().Done())
		t.Cleanup(f.Shutdown)
	}

	settled := func(when string) {
		t.Helper()
		for i, m := range mirrors {
			want := versions(t, w, m.gvr, ns)
			cluster.Eventually(t, fmt.Sprintf("%s: informer %d of %s is where upstream is", when, i, m.gvr.Resource), func() bool {
				return m.informer.HasSynced() && maps.Equal(m.stored(ns), want) && maps.Equal(m.handled(ns), want)
			})
		}
	}
	settled("first")
	writer.write(t, some)
	settled("after changes")
	proxy.Kill()
	cluster.MustT(t, proxy.Start(t.Context()))
	writer.write(t, some)
	settled("after the proxy was killed")
	cluster.MustT(t, errors.Join(proxy.Stop(), proxy.Start(t.Context())))
	writer.write(t, some)
	settled("after a restart of the proxy")
	for _, encoding := range []string{"json", "protobuf"} {
		if proxy.MetricsT(t).Sum("watchproxy_feed_synced", cluster.Label("encoding", encoding)) == 0 {
			t.Errorf("nothing is cached in %s", encoding)
		}
	}
	for i, m := range mirrors {
		for _, complaint := range m.complaints() {
			t.Errorf("informer %d of %s: %s", i, m.gvr.Resource, complaint)
		}
	}
}

var (
	pods    = schema.GroupVersionResource{Version: "v1", Resource: "pods"}
	configs = schema.GroupVersionResource{Version: "v1", Resource: "configmaps"}
)

// objectWriter makes random changes directly at the apiserver.
type objectWriter struct {
	world     *World
	namespace string
	random    *rand.Rand
	made      int
	live      map[schema.GroupVersionResource][]string
}

func (o *objectWriter) write(t *testing.T, changes int) {
	t.Helper()
	for range changes {
		gvr := []schema.GroupVersionResource{pods, configs, Widgets}[o.random.IntN(3)]
		objects, live := o.world.Dynamic.Resource(gvr).Namespace(o.namespace), o.live[gvr]
		var err error
		switch pick := o.random.IntN(10); {
		case pick < 4 || len(live) == 0:
			o.made++
			object := template(gvr, fmt.Sprintf("object-%d", o.made))
			_, err = objects.Create(t.Context(), object, metav1.CreateOptions{})
			o.live[gvr] = append(live, object.GetName())
		case pick < 8:
			name := live[o.random.IntN(len(live))]
			_, err = objects.Patch(t.Context(), name, types.MergePatchType, LabelPatch("n", fmt.Sprint(o.random.IntN(100))), metav1.PatchOptions{})
		default:
			at := o.random.IntN(len(live))
			err = objects.Delete(t.Context(), live[at], *metav1.NewDeleteOptions(0))
			o.live[gvr] = append(live[:at:at], live[at+1:]...)
		}
		cluster.MustT(t, err)
	}
}

// versions returns the resourceVersion of each object upstream.
func versions(t *testing.T, w *World, gvr schema.GroupVersionResource, ns string) map[string]string {
	t.Helper()
	list, err := w.Dynamic.Resource(gvr).Namespace(ns).List(t.Context(), metav1.ListOptions{})
	cluster.MustT(t, err)
	all := map[string]string{}
	for _, o := range list.Items {
		all[o.GetNamespace()+"/"+o.GetName()] = o.GetResourceVersion()
	}
	return all
}

// mirror is an informer with a handler that records every event.
type mirror struct {
	gvr      schema.GroupVersionResource
	informer cache.SharedIndexInformer

	mu struct {
		sync.Mutex
		versions map[string]string
		wrong    []string
	}
}

func newMirror(t *testing.T, gvr schema.GroupVersionResource, informer cache.SharedIndexInformer) *mirror {
	t.Helper()
	m := &mirror{gvr: gvr, informer: informer}
	m.mu.versions = map[string]string{}
	if _, err := informer.AddEventHandler(m); err != nil {
		t.Fatal(err)
	}
	return m
}

// OnAdd implements cache.ResourceEventHandler.
func (m *mirror) OnAdd(object any, _ bool) {
	m.note(object, "added", func(known bool) bool { return !known })
}

// OnUpdate implements cache.ResourceEventHandler.
func (m *mirror) OnUpdate(_, object any) {
	m.note(object, "updated", func(known bool) bool { return known })
}

// OnDelete implements cache.ResourceEventHandler.
func (m *mirror) OnDelete(object any) {
	if gone, ok := object.(cache.DeletedFinalStateUnknown); ok {
		object = gone.Obj // the informer noticed the deletion in a list
	}
	key := m.note(object, "deleted", func(known bool) bool { return known })
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.mu.versions, key)
}

// note stores an object's version. It reports an error unless right agrees with whether the object
// was known before.
func (m *mirror) note(object any, what string, right func(known bool) bool) (key string) {
	o := object.(metav1.Object)
	key = o.GetNamespace() + "/" + o.GetName()
	m.mu.Lock()
	defer m.mu.Unlock()
	if _, known := m.mu.versions[key]; !right(known) {
		m.mu.wrong = append(m.mu.wrong, fmt.Sprintf("%s was %s; known before: %t", key, what, known))
	}
	m.mu.versions[key] = o.GetResourceVersion()
	return key
}

// handled returns the versions in one namespace that the handler has received.
func (m *mirror) handled(ns string) map[string]string {
	m.mu.Lock()
	defer m.mu.Unlock()
	all := maps.Clone(m.mu.versions)
	maps.DeleteFunc(all, func(key, _ string) bool { return !strings.HasPrefix(key, ns+"/") })
	return all
}

func (m *mirror) complaints() []string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.mu.wrong
}

// stored returns the versions in one namespace from the informer's store.
func (m *mirror) stored(ns string) map[string]string {
	all := map[string]string{}
	for _, object := range m.informer.GetStore().List() {
		if o := object.(metav1.Object); o.GetNamespace() == ns {
			all[o.GetNamespace()+"/"+o.GetName()] = o.GetResourceVersion()
		}
	}
	return all
}

// template returns an object of a resource that the apiserver accepts.
func template(gvr schema.GroupVersionResource, name string) *unstructured.Unstructured {
	switch gvr {
	case pods:
		return &unstructured.Unstructured{Object: map[string]any{
			"apiVersion": "v1", "kind": "Pod", "metadata": map[string]any{"name": name},
			"spec": map[string]any{"containers": []any{map[string]any{"name": "main", "image": "none"}}},
		}}
	case configs:
		return &unstructured.Unstructured{Object: map[string]any{
			"apiVersion": "v1", "kind": "ConfigMap", "metadata": map[string]any{"name": name},
		}}
	}
	return NewWidget(name)
}
