package faults

import (
	"context"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/watchproxy/watchproxy/bench/cluster"
)

// resource is a resource that is written, watched and read.
type resource struct {
	schema.GroupVersionResource
	root, kind, content string // content is the field that writers set
}

var (
	configMaps = resource{schema.GroupVersionResource{Version: "v1", Resource: "configmaps"}, "/api/v1", "ConfigMap", "data"}
	gadgets    = resource{schema.GroupVersionResource{Group: "faults.test", Version: "v1", Resource: "gadgets"}, "/apis/faults.test/v1", "Gadget", "spec"}
)

// list returns the path of a namespace's objects.
func (r resource) list(namespace string) string {
	return r.root + "/namespaces/" + namespace + "/" + r.Resource
}

// watch returns the request target of a watch of a selection.
func (r resource) watch(namespace, selection, query string) string {
	t := r.list(namespace) + "?watch=true&allowWatchBookmarks=true&" + query
	if selection != "" {
		t += "&" + selection
	}
	return t
}

func (r resource) object(name, colour, n string) *unstructured.Unstructured {
	return &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": r.GroupVersion().String(), "kind": r.kind,
		"metadata": map[string]any{"name": name, "labels": map[string]any{"colour": colour}},
		r.content:  map[string]any{"n": n},
	}}
}

// define creates the custom resource, and waits until it is served.
func (r resource) define(ctx context.Context, t *testing.T, w *world) {
	t.Helper()
	content := map[string]any{"type": "object", "properties": map[string]any{"n": map[string]any{"type": "string"}}}
	cluster.MustT(t, w.api.Define(ctx, r.GroupVersionResource, r.kind, map[string]any{r.content: content}, nil))
}

func (r resource) definition() string { return r.Resource + "." + r.Group }

// redefine adds a default to the schema, so that the encoding of existing objects changes.
func (r resource) redefine(ctx context.Context, t *testing.T, w *world, value string) {
	t.Helper()
	patch := `[{"op": "add", "path": "/spec/versions/0/schema/openAPIV3Schema/properties/` + r.content + `/properties/of",
		"value": {"type": "string", "default": "` + value + `"}}]`
	if _, err := w.dynamic.Resource(cluster.Definitions).Patch(ctx, r.definition(), types.JSONPatchType, []byte(patch), metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
}

// churn changes the definition, deletes it with all of its objects, and creates it again.
func churn(t *testing.T, w *world) {
	ctx := t.Context()
	for _, value := range []string{"one", "two"} {
		w.of.redefine(ctx, t, w, value)
		cluster.Pause(ctx, lasting/3)
	}
	cluster.MustT(t, w.dynamic.Resource(cluster.Definitions).Delete(ctx, w.of.definition(), metav1.DeleteOptions{}))
	cluster.Eventually(t, "it is not served", func() bool {
		_, err := w.objects("").List(ctx, metav1.ListOptions{Limit: 1})
		return apierrors.IsNotFound(err)
	})
	cluster.Pause(ctx, lasting/3)
	w.of.define(ctx, t, w)
	cluster.Pause(ctx, lasting/3)
}
