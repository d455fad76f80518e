package faults

import (
	"context"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
)

// resource is what is written, watched and read.
type resource struct {
	schema.GroupVersionResource
	root, kind, content string // content is the field that writers fill
}

var (
	configMaps = resource{schema.GroupVersionResource{Version: "v1", Resource: "configmaps"}, "/api/v1", "ConfigMap", "data"}
	gadgets    = resource{schema.GroupVersionResource{Group: "faults.test", Version: "v1", Resource: "gadgets"}, "/apis/faults.test/v1", "Gadget", "spec"}
)

// list is the path of a namespace's objects.
func (r resource) list(namespace string) string {
	return r.root + "/namespaces/" + namespace + "/" + r.Resource
}

// watch is the target of a watch of a selection.
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

var definitions = schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"}

// define makes the custom resource, and waits until it is served.
func (r resource) define(ctx context.Context, t *testing.T, w *world) {
	t.Helper()
	_, err := w.dynamic.Resource(definitions).Create(ctx, &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
		"metadata": map[string]any{"name": r.definition()},
		"spec": map[string]any{
			"group": r.Group, "scope": "Namespaced",
			"names": map[string]any{"plural": r.Resource, "kind": r.kind},
			"versions": []any{map[string]any{
				"name": r.Version, "served": true, "storage": true,
				"schema": map[string]any{"openAPIV3Schema": map[string]any{
					"type": "object",
					"properties": map[string]any{r.content: map[string]any{
						"type": "object", "properties": map[string]any{"n": map[string]any{"type": "string"}},
					}},
				}},
			}},
		},
	}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	w.served(ctx, t, true)
}

func (r resource) definition() string { return r.Resource + "." + r.Group }

// served waits until the apiserver serves the resource, or does not.
func (w *world) served(ctx context.Context, t *testing.T, want bool) {
	t.Helper()
	for {
		_, err := w.dynamic.Resource(w.of.GroupVersionResource).List(ctx, metav1.ListOptions{Limit: 1})
		switch {
		case ctx.Err() != nil:
			t.Fatalf("served=%t: %v", want, ctx.Err())
		case want && err == nil, !want && apierrors.IsNotFound(err):
			return
		}
		pause(ctx)
	}
}

// redefine changes the schema by a default: the same objects are written in another way from then on.
func (r resource) redefine(ctx context.Context, t *testing.T, w *world, value string) {
	t.Helper()
	patch := `[{"op": "add", "path": "/spec/versions/0/schema/openAPIV3Schema/properties/` + r.content + `/properties/of",
		"value": {"type": "string", "default": "` + value + `"}}]`
	if _, err := w.dynamic.Resource(definitions).Patch(ctx, r.definition(), types.JSONPatchType, []byte(patch), metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
}

// churn changes the definition, deletes it with all that is there of it, and makes it again.
func churn(t *testing.T, w *world) {
	ctx := t.Context()
	for _, value := range []string{"one", "two"} {
		w.of.redefine(ctx, t, w, value)
		lull(ctx, lasting/3)
	}
	if err := w.dynamic.Resource(definitions).Delete(ctx, w.of.definition(), metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	w.served(ctx, t, false)
	lull(ctx, lasting/3)
	w.of.define(ctx, t, w)
	lull(ctx, lasting/3)
}
