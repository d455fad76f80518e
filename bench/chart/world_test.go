package chart

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
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

	discovery string // Helm's cache
	rendered  sync.Once
	allKinds  []schema.GroupVersionKind
}

// sharedWorld starts the world at its first call.
var sharedWorld = cluster.Shared(newWorld)

func newWorld(tb testing.TB) *world {
	tb.Helper()
	audit := &cluster.AuditLog{Path: filepath.Join(tb.TempDir(), "audit.log")}
	w := worldOf(cluster.APIServerT(tb, cluster.Options{AuditLog: audit.Path}))
	w.discovery, w.audit = tb.TempDir(), audit
	ctx, cancel := context.WithTimeout(tb.Context(), limit)
	defer cancel()
	// In this namespace the apiserver refuses pods that violate Kubernetes' strictest security
	// standard.
	restricted := map[string]string{"pod-security.kubernetes.io/enforce": "restricted"}
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace, Labels: restricted}}
	if _, err := w.admin.CoreV1().Namespaces().Create(ctx, ns, metav1.CreateOptions{}); err != nil {
		tb.Fatal(err)
	}
	if err := w.define(ctx, tb); err != nil {
		tb.Fatal(err)
	}
	return w
}

func worldOf(api *cluster.APIServer) *world {
	w := &world{api: api, admin: api.Client(), dynamic: api.Dynamic()}
	w.mapping = restmapper.NewDeferredDiscoveryRESTMapper(memory.NewMemCacheClient(w.admin.Discovery()))
	return w
}

// define creates the custom resources and waits until the apiserver serves them.
func (w *world) define(ctx context.Context, tb testing.TB) error {
	tb.Helper()
	files, err := filepath.Glob("testdata/crds/*.yaml")
	if err != nil {
		return err
	}
	definitions := w.dynamic.Resource(cluster.Definitions)
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			return err
		}
		for _, crd := range parseObjects(tb, string(text)) {
			if _, err := definitions.Create(ctx, crd, metav1.CreateOptions{}); err != nil {
				return fmt.Errorf("%s: %w", file, err)
			}
			for !established(crd) {
				if ctx.Err() != nil {
					return fmt.Errorf("%s is not established: %w", crd.GetName(), ctx.Err())
				}
				if crd, err = definitions.Get(ctx, crd.GetName(), metav1.GetOptions{}); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

func established(crd *unstructured.Unstructured) bool {
	conditions, _, _ := unstructured.NestedSlice(crd.Object, "status", "conditions")
	for _, c := range conditions {
		if c, ok := c.(map[string]any); ok && c["type"] == "Established" && c["status"] == "True" {
			return true
		}
	}
	return false
}

// apply applies an object with strict validation, or only simulates it.
func (w *world) apply(ctx context.Context, o *unstructured.Unstructured, dryRun ...string) error {
	gvk := o.GroupVersionKind()
	mapping, err := w.mapping.RESTMapping(gvk.GroupKind(), gvk.Version)
	if err != nil {
		return err
	}
	text, err := o.MarshalJSON()
	if err != nil {
		return err
	}
	_, err = w.dynamic.Resource(mapping.Resource).Namespace(o.GetNamespace()).Patch(ctx, o.GetName(), types.ApplyPatchType, text,
		metav1.PatchOptions{FieldManager: "test", FieldValidation: metav1.FieldValidationStrict, DryRun: dryRun})
	return err
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
