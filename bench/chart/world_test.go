package chart

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/restmapper"

	"github.com/watchproxy/watchproxy/bench/cluster"
)

// world is an apiserver with the custom resources that the chart makes objects of. All tests share it.
type world struct {
	api     *cluster.APIServer
	dir     string
	audit   string // path of the apiserver's log
	admin   *kubernetes.Clientset
	dynamic *dynamic.DynamicClient
	mapping *restmapper.DeferredDiscoveryRESTMapper
}

var (
	shared     *world
	sharedErr  error
	sharedOnce sync.Once
)

// sharedWorld starts the world at its first call.
func sharedWorld(t *testing.T) *world {
	t.Helper()
	sharedOnce.Do(func() { shared, sharedErr = newWorld(t) })
	if sharedErr != nil {
		t.Fatal(sharedErr)
	}
	return shared
}

func (w *world) close() error {
	if w == nil {
		return nil
	}
	var err error
	if w.api != nil {
		err = w.api.Close()
	}
	return errors.Join(err, os.RemoveAll(w.dir))
}

// restricted has the apiserver refuse pods in a namespace that are not as Kubernetes' strictest standard wants them.
var restricted = map[string]string{"pod-security.kubernetes.io/enforce": "restricted"}

func newWorld(t *testing.T) (w *world, err error) {
	t.Helper()
	w = &world{}
	defer func() {
		if err != nil {
			err = errors.Join(err, w.close())
		}
	}()
	const limit = 3 * time.Minute
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	if w.dir, err = os.MkdirTemp("", "chart-"); err != nil {
		return w, err
	}
	w.audit = filepath.Join(w.dir, "audit.log")
	if w.api, err = cluster.StartAPIServer(ctx, cluster.Options{AuditLog: w.audit}); err != nil {
		return w, err
	}
	if w.admin, err = kubernetes.NewForConfig(w.api.RESTConfig()); err != nil {
		return w, err
	}
	if w.dynamic, err = dynamic.NewForConfig(w.api.RESTConfig()); err != nil {
		return w, err
	}
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace, Labels: restricted}}
	if _, err = w.admin.CoreV1().Namespaces().Create(ctx, ns, metav1.CreateOptions{}); err != nil {
		return w, err
	}
	if err := w.define(ctx, t); err != nil {
		return w, err
	}
	w.mapping = restmapper.NewDeferredDiscoveryRESTMapper(newDiscovery(w.admin))
	return w, nil
}

// define makes the custom resources and waits until they are served.
func (w *world) define(ctx context.Context, t *testing.T) error {
	t.Helper()
	files, err := filepath.Glob("testdata/crds/*.yaml")
	if err != nil {
		return err
	}
	definitions := w.dynamic.Resource(schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"})
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			return err
		}
		for _, crd := range parseObjects(t, string(text)) {
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

// apply applies an object, strictly, or pretends to.
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
