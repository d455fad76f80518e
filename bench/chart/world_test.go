package chart

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	nodev1 "k8s.io/api/node/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/discovery/cached/memory"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/restmapper"

	"github.com/watchproxy/watchproxy/bench/cluster"
)

// world is an apiserver with the custom resources that the chart uses. All tests share it.
type world struct {
	api     *cluster.APIServer
	audit   *cluster.AuditLog
	admin   *kubernetes.Clientset
	dynamic *dynamic.DynamicClient
	mapping *restmapper.DeferredDiscoveryRESTMapper

	discovery string          // Helm's cache
	accepted  map[string]bool // what the apiserver has accepted
}

// sharedWorld starts the world at its first call.
var sharedWorld = cluster.Shared(newWorld)

func newWorld(tb testing.TB) *world {
	tb.Helper()
	audit := &cluster.AuditLog{Path: filepath.Join(tb.TempDir(), "audit.log")}
	w := worldOf(cluster.APIServerT(tb, cluster.Options{AuditLog: audit.Path}))
	w.discovery, w.audit, w.accepted = tb.TempDir(), audit, map[string]bool{}
	ctx := tb.Context()
	// In this namespace the apiserver refuses pods that violate Kubernetes' strictest security
	// standard.
	restricted := map[string]string{"pod-security.kubernetes.io/enforce": "restricted"}
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace, Labels: restricted}}
	_, err := w.admin.CoreV1().Namespaces().Create(ctx, ns, metav1.CreateOptions{})
	must(tb, err)
	class := &nodev1.RuntimeClass{ObjectMeta: metav1.ObjectMeta{Name: "runc"}, Handler: "runc"}
	_, err = w.admin.NodeV1().RuntimeClasses().Create(ctx, class, metav1.CreateOptions{})
	must(tb, err)
	files, err := filepath.Glob("testdata/crds/*.yaml")
	must(tb, err)
	for _, file := range files {
		text, err := os.ReadFile(file)
		must(tb, err)
		for _, crd := range parseObjects(tb, string(text)) {
			w.define(tb, crd)
		}
	}
	return w
}

// define creates a custom resource and waits until the apiserver serves it.
func (w *world) define(tb testing.TB, crd *unstructured.Unstructured) {
	tb.Helper()
	definitions := w.dynamic.Resource(cluster.Definitions)
	_, err := definitions.Create(tb.Context(), crd, metav1.CreateOptions{})
	must(tb, err)
	cluster.Within(tb, limit, crd.GetName()+" is established", func() bool {
		now, err := definitions.Get(tb.Context(), crd.GetName(), metav1.GetOptions{})
		must(tb, err)
		conditions, _, _ := unstructured.NestedSlice(now.Object, "status", "conditions")
		return slices.ContainsFunc(conditions, func(c any) bool {
			is := c.(map[string]any)
			return is["type"] == "Established" && is["status"] == "True"
		})
	})
}

func worldOf(api *cluster.APIServer) *world {
	w := &world{api: api, admin: api.Client(), dynamic: api.Dynamic()}
	w.mapping = restmapper.NewDeferredDiscoveryRESTMapper(memory.NewMemCacheClient(w.admin.Discovery()))
	return w
}

// apply applies an object with strict validation, or only simulates it. An object without a namespace
// goes to the release's.
func (w *world) apply(ctx context.Context, o *unstructured.Unstructured, dryRun ...string) error {
	gvk := o.GroupVersionKind()
	mapping, err := w.mapping.RESTMapping(gvk.GroupKind(), gvk.Version)
	if err != nil {
		return err
	}
	ns := o.GetNamespace()
	if ns == "" && mapping.Scope.Name() == meta.RESTScopeNameNamespace {
		ns = namespace
	}
	text, err := o.MarshalJSON()
	if err != nil {
		return err
	}
	_, err = w.dynamic.Resource(mapping.Resource).Namespace(ns).Patch(ctx, o.GetName(), types.ApplyPatchType, text,
		metav1.PatchOptions{FieldManager: "test", FieldValidation: metav1.FieldValidationStrict, DryRun: dryRun})
	return err
}

func must(tb testing.TB, err error) {
	tb.Helper()
	if err != nil {
		tb.Fatal(err)
	}
}
