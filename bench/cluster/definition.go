package cluster

import (
	"context"
	"fmt"
	"maps"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// Definitions is the resource of CustomResourceDefinitions.
var Definitions = schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"}

// Define creates a namespaced custom resource if it does not exist, and waits until the apiserver
// serves it, for at most Limit. properties is the objects' schema beyond metadata. more has further fields of the
// version.
func (s *APIServer) Define(ctx context.Context, of schema.GroupVersionResource, kind string, properties, more map[string]any) error {
	version := map[string]any{
		"name": of.Version, "served": true, "storage": true,
		"schema": map[string]any{"openAPIV3Schema": map[string]any{"type": "object", "properties": properties}},
	}
	maps.Copy(version, more)
	ctx, cancel := context.WithTimeout(ctx, Limit)
	defer cancel()
	client := s.Dynamic()
	_, err := client.Resource(Definitions).Create(ctx, &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
		"metadata": map[string]any{"name": of.Resource + "." + of.Group},
		"spec": map[string]any{
			"group": of.Group, "scope": "Namespaced", "versions": []any{version},
			"names": map[string]any{"plural": of.Resource, "singular": strings.ToLower(kind), "kind": kind, "listKind": kind + "List"},
		},
	}}, metav1.CreateOptions{})
	if err != nil && !apierrors.IsAlreadyExists(err) {
		return fmt.Errorf("cannot define %s: %w", of.Resource, err)
	}
	for {
		if _, err = client.Resource(of).List(ctx, metav1.ListOptions{Limit: 1}); err == nil {
			return nil
		}
		if ctx.Err() != nil {
			return fmt.Errorf("%s are not served: %w", of.Resource, err)
		}
		Pause(ctx, 20*time.Millisecond)
	}
}
