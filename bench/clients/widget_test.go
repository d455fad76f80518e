package clients

import (
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

var (
	widgets = schema.GroupVersionResource{Group: "clients.test", Version: "v1", Resource: "widgets"}
	crds    = schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"}
)

// newWidgets defines the custom resource widgets, unless it is there, and waits until it is served.
func newWidgets(t *testing.T, w *world) {
	t.Helper()
	definition := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "apiextensions.k8s.io/v1",
		"kind":       "CustomResourceDefinition",
		"metadata":   map[string]any{"name": "widgets.clients.test"},
		"spec": map[string]any{
			"group": "clients.test",
			"scope": "Namespaced",
			"names": map[string]any{"plural": "widgets", "singular": "widget", "kind": "Widget", "listKind": "WidgetList"},
			"versions": []any{map[string]any{
				"name": "v1", "served": true, "storage": true,
				"additionalPrinterColumns": []any{map[string]any{"name": "Size", "type": "integer", "jsonPath": ".spec.size"}},
				"schema": map[string]any{"openAPIV3Schema": map[string]any{
					"type": "object",
					"properties": map[string]any{"spec": map[string]any{
						"type":       "object",
						"properties": map[string]any{"size": map[string]any{"type": "integer", "description": "How large it is."}},
					}},
				}},
			}},
		},
	}}
	if _, err := w.dynamic.Resource(crds).Create(t.Context(), definition, metav1.CreateOptions{}); err != nil && !apierrors.IsAlreadyExists(err) {
		t.Fatal(err)
	}
	eventually(t, "widgets are served and documented", func() bool {
		if _, err := w.dynamic.Resource(widgets).List(t.Context(), metav1.ListOptions{}); err != nil {
			return false
		}
		document, err := w.admin.RESTClient().Get().AbsPath("/openapi/v3/apis/clients.test/v1").DoRaw(t.Context())
		return err == nil && len(document) > 0
	})
}

func widget(name string) *unstructured.Unstructured {
	return &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "clients.test/v1",
		"kind":       "Widget",
		"metadata":   map[string]any{"name": name},
		"spec":       map[string]any{"size": int64(1)},
	}}
}

// template is an object of a kind, as the apiserver accepts it.
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
	return widget(name)
}
