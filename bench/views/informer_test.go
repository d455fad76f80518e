package views

import (
	"math/rand/v2"
	"testing"

	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/metadata/metadatainformer"
	"k8s.io/client-go/rest"
	clientcache "k8s.io/client-go/tools/cache"

	"github.com/watchproxy/watchproxy/bench/cluster"
)

// Informers that prefer protobuf have the cut objects in the end.
func TestInformers(t *testing.T) {
	w := sharedWorld(t)
	pods, namespace := w.find(t, "api/v1/pods"), newNamespace(t, w)
	v := pods.views[viewsEach] // which keeps only labels
	s := &script{w: w, r: pods, namespace: namespace, prefix: cluster.UniqueName("informed"), random: rand.New(rand.NewPCG(cluster.Seed(), 0))}
	if err := s.create(t.Context()); err != nil {
		t.Fatal(err)
	}
	config := &rest.Config{
		Host: w.proxy.URL + "/views/" + v.name, BearerToken: w.proxy.Token, QPS: -1, TLSClientConfig: rest.TLSClientConfig{CAData: w.ca},
		ContentConfig: rest.ContentConfig{ContentType: "application/vnd.kubernetes.protobuf"},
	}
	typedFactory := informers.NewSharedInformerFactoryWithOptions(kubernetes.NewForConfigOrDie(config), 0, informers.WithNamespace(namespace))
	metadataFactory := metadatainformer.NewFilteredSharedInformerFactory(metadata.NewForConfigOrDie(config), 0, namespace, nil)
	gvr := schema.GroupVersionResource{Version: "v1", Resource: pods.plural}
	whole, partial := typedFactory.Core().V1().Pods().Informer(), metadataFactory.ForResource(gvr).Informer()
	for _, f := range []interface {
		Start(stop <-chan struct{})
		Shutdown()
	}{typedFactory, metadataFactory} {
		f.Start(t.Context().Done())
		t.Cleanup(f.Shutdown)
	}
	const changes = 20
	for range changes {
		if err := s.change(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.create(t.Context()); err != nil { // the others may be gone
		t.Fatal(err)
	}
	all, err := decode(w.mustT(t, w.api, cluster.Get(pods.in(namespace))).Body)
	if err != nil {
		t.Fatal(err)
	}
	for of, informer := range map[schema.GroupVersionKind]clientcache.SharedIndexInformer{
		pods.gvk(): whole, metav1.SchemeGroupVersion.WithKind("PartialObjectMetadata"): partial,
	} {
		due := map[string]metav1.Object{}
		for _, item := range at(v.cutItems(all), "items").(list) {
			o, err := typed(of, item)
			if err != nil {
				t.Fatal(err)
			}
			due[o.(metav1.Object).GetName()] = unversioned(o)
		}
		cluster.Eventually(t, "an informer of "+of.Kind+" has the cut objects", func() bool {
			has := map[string]metav1.Object{}
			for _, o := range informer.GetStore().List() {
				has[o.(metav1.Object).GetName()] = unversioned(o.(runtime.Object).DeepCopyObject())
			}
			return equality.Semantic.DeepEqual(has, due)
		})
	}
}

// unversioned removes the resourceVersion, which changes more often than what an informer is shown.
func unversioned(o runtime.Object) metav1.Object {
	meta := untyped(o).(metav1.Object)
	meta.SetResourceVersion("")
	return meta
}
