package access

import (
	"context"
	"fmt"
	"maps"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
)

const (
	teamA = "team-a"
	teamB = "team-b"
)

var (
	pods       = schema.GroupVersionResource{Version: "v1", Resource: "pods"}
	configmaps = schema.GroupVersionResource{Version: "v1", Resource: "configmaps"}
	namespaces = schema.GroupVersionResource{Version: "v1", Resource: "namespaces"}
	nodes      = schema.GroupVersionResource{Version: "v1", Resource: "nodes"}
	accounts   = schema.GroupVersionResource{Version: "v1", Resource: "serviceaccounts"}
	widgets    = schema.GroupVersionResource{Group: "access.test", Version: "v1", Resource: "widgets"}
)

// seed creates the objects that the callers read: in both namespaces the objects one, two and three
// of each resource, with pods on the nodes n1 and n2.
func (w *world) seed(ctx context.Context) error {
	for _, name := range []string{"n1", "n2"} {
		if err := w.create(ctx, nodes, "", object("v1", "Node", name, "web", nil)); err != nil {
			return err
		}
	}
	if err := w.define(ctx); err != nil {
		return err
	}
	for _, namespace := range []string{teamA, teamB} {
		if err := w.create(ctx, namespaces, "", object("v1", "Namespace", namespace, "web", nil)); err != nil {
			return err
		}
		for _, name := range []string{"robot", "leaver"} {
			if err := w.create(ctx, accounts, namespace, object("v1", "ServiceAccount", name, "", nil)); err != nil {
				return err
			}
		}
		for i, name := range []string{"one", "two", "three"} {
			if err := w.createOfEach(ctx, namespace, name, i); err != nil {
				return err
			}
		}
	}
	return nil
}

// createOfEach creates an object of each resource. The pod refers to the configmap, so the kubelet
// of the pod's node may read the configmap.
func (w *world) createOfEach(ctx context.Context, namespace, name string, i int) error {
	app, node := "web", "n1"
	if i%2 == 1 {
		app, node = "db", "n2"
	}
	spec := map[string]any{
		"nodeName":   node,
		"containers": []any{map[string]any{"name": "main", "image": "none"}},
		"volumes":    []any{map[string]any{"name": "config", "configMap": map[string]any{"name": name}}},
	}
	for gvr, o := range map[schema.GroupVersionResource]*unstructured.Unstructured{
		pods:       object("v1", "Pod", name, app, map[string]any{"spec": spec}),
		configmaps: object("v1", "ConfigMap", name, app, map[string]any{"data": map[string]any{"of": namespace}}),
		widgets:    object("access.test/v1", "Widget", name, app, map[string]any{"spec": map[string]any{"size": int64(i)}}),
	} {
		if err := w.create(ctx, gvr, namespace, o); err != nil {
			return err
		}
	}
	return nil
}

// churn causes events: in each collection it changes objects, creates one and deletes one.
func (w *world) churn(ctx context.Context) error {
	patch := []byte(`{"metadata":{"labels":{"changed":"yes"}}}`)
	change := func(gvr schema.GroupVersionResource, namespace, name string) error {
		_, err := w.dynamic.Resource(gvr).Namespace(namespace).Patch(ctx, name, types.MergePatchType, patch, metav1.PatchOptions{})
		return err
	}
	for _, namespace := range []string{teamA, teamB} {
		if err := change(namespaces, "", namespace); err != nil {
			return err
		}
		if err := w.createOfEach(ctx, namespace, "four", 4); err != nil {
			return err
		}
		for _, gvr := range []schema.GroupVersionResource{pods, configmaps, widgets} {
			for _, name := range []string{"one", "two"} {
				if err := change(gvr, namespace, name); err != nil {
					return err
				}
			}
			now := int64(0)
			err := w.dynamic.Resource(gvr).Namespace(namespace).Delete(ctx, "three", metav1.DeleteOptions{GracePeriodSeconds: &now})
			if err != nil {
				return err
			}
		}
	}
	for _, node := range []string{"n1", "n2"} {
		if err := change(nodes, "", node); err != nil {
			return err
		}
	}
	return nil
}

func (w *world) create(ctx context.Context, gvr schema.GroupVersionResource, namespace string, o *unstructured.Unstructured) error {
	if _, err := w.dynamic.Resource(gvr).Namespace(namespace).Create(ctx, o, metav1.CreateOptions{}); err != nil {
		return fmt.Errorf("%s %s/%s: %w", gvr.Resource, namespace, o.GetName(), err)
	}
	return nil
}

func object(apiVersion, kind, name, app string, rest map[string]any) *unstructured.Unstructured {
	meta := map[string]any{"name": name, "labels": map[string]any{"app": app}}
	o := map[string]any{"apiVersion": apiVersion, "kind": kind, "metadata": meta}
	maps.Copy(o, rest)
	return &unstructured.Unstructured{Object: o}
}

// define creates the definition of the custom resource and waits until the apiserver serves it.
func (w *world) define(ctx context.Context) error {
	anything := map[string]any{"type": "object", "x-kubernetes-preserve-unknown-fields": true}
	return w.api.Define(ctx, widgets, "Widget", map[string]any{"spec": anything}, nil)
}

// newest returns the latest resourceVersion.
func (w *world) newest(ctx context.Context) (string, error) {
	list, err := w.admin.CoreV1().ConfigMaps(corev1.NamespaceDefault).List(ctx, metav1.ListOptions{})
	if err != nil {
		return "", err
	}
	return list.ResourceVersion, nil
}
