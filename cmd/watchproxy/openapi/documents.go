package openapi

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/version"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/openapi"
	"k8s.io/client-go/rest"
	"k8s.io/kube-openapi/pkg/validation/spec"
)

// documents are upstream's discovery and OpenAPI. The document of a group and version is read when
// it is first used.
type documents struct {
	resources  []*metav1.APIResourceList // the most stable versions first
	incomplete map[schema.GroupVersion]error
	paths      map[string]openapi.GroupVersionWithContext
	schemas    map[schema.GroupVersion]map[string]*spec.Schema
	unread     []error // about documents that could not be read
}

func read(ctx context.Context, rc *rest.Config) (*documents, error) {
	client, err := discovery.NewDiscoveryClientForConfig(rc)
	if err != nil {
		return nil, err
	}
	d := &documents{schemas: map[schema.GroupVersion]map[string]*spec.Schema{}}
	if _, d.resources, err = client.ServerGroupsAndResourcesWithContext(ctx); err != nil {
		var partly bool
		if d.incomplete, partly = discovery.GroupDiscoveryFailedErrorGroups(err); !partly {
			return nil, because(ctx, "discovery", err)
		}
	}
	slices.SortFunc(d.resources, func(a, b *metav1.APIResourceList) int {
		return version.CompareKubeAwareVersionStrings(versionOf(b).Version, versionOf(a).Version)
	})
	if d.paths, err = client.OpenAPIV3WithContext(ctx).PathsWithContext(ctx); err != nil {
		return nil, because(ctx, "OpenAPI", err)
	}
	return d, nil
}

// because says what could not be read and why, also if ctx has ended.
func because(ctx context.Context, what string, err error) error {
	if ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	return fmt.Errorf("read upstream's %s: %w", what, err)
}

func versionOf(list *metav1.APIResourceList) schema.GroupVersion {
	return schema.FromAPIVersionAndKind(list.GroupVersion, "").GroupVersion()
}

// kinds returns the kind of a resource in each version that upstream serves. If upstream has no
// such resource, or its discovery could not be read, the kind has all fields.
func (d *documents) kinds(ctx context.Context, resource string) (kinds []kind, err error) {
	var names []string
	for _, list := range d.resources {
		gv := versionOf(list)
		for _, r := range list.APIResources {
			name := schema.GroupResource{Group: gv.Group, Resource: r.Name}.String()
			if name == resource {
				kinds = append(kinds, d.kind(ctx, resource, gv.WithKind(r.Kind)))
			}
			if !strings.Contains(name, "/") { // it is no subresource
				names = append(names, name)
			}
		}
	}
	if len(kinds) > 0 {
		return kinds, nil
	}
	kinds = []kind{{resource, &spec.Schema{}, nil}}
	for gv, err := range d.incomplete {
		if gv.Group == schema.ParseGroupResource(resource).Group {
			d.unread = append(d.unread, because(ctx, "discovery of "+gv.String(), err))
			return kinds, nil
		}
	}
	return kinds, fmt.Errorf("upstream has no resource %s; it has %s", resource, similar(resource, names))
}

// kind returns a kind. If its schema could not be read, the kind has all fields.
func (d *documents) kind(ctx context.Context, resource string, of schema.GroupVersionKind) kind {
	gv := of.GroupVersion()
	if _, known := d.schemas[gv]; !known {
		var err error
		if d.schemas[gv], err = d.read(ctx, gv); err != nil {
			d.unread = append(d.unread, because(ctx, "OpenAPI of "+gv.String(), err))
		}
	}
	for _, s := range d.schemas[gv] {
		var kinds []metav1.GroupVersionKind
		if s.Extensions.GetObject("x-kubernetes-group-version-kind", &kinds) == nil && slices.Contains(kinds, metav1.GroupVersionKind(of)) {
			return kind{resource, s, d.schemas[gv]}
		}
	}
	if len(d.schemas[gv]) > 0 {
		d.unread = append(d.unread, fmt.Errorf("upstream's OpenAPI of %s has no kind %s", gv, of.Kind))
	}
	return kind{resource, &spec.Schema{}, nil}
}

// read returns the schemas in the document of a group and version.
func (d *documents) read(ctx context.Context, gv schema.GroupVersion) (map[string]*spec.Schema, error) {
	path := "apis/" + gv.String()
	if gv.Group == "" {
		path = "api/" + gv.Version
	}
	document, ok := d.paths[path]
	if !ok {
		return nil, errors.New("there is no such document")
	}
	text, err := document.SchemaWithContext(ctx, runtime.ContentTypeJSON)
	if err != nil {
		return nil, err
	}
	var content struct {
		Components struct{ Schemas map[string]*spec.Schema }
	}
	err = json.Unmarshal(text, &content)
	return content.Components.Schemas, err
}
