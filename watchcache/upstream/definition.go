package upstream

import (
	"context"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/watchproxy/watchproxy/watchcache/upstream/client"
)

var definitionResource = schema.GroupVersionResource{
	Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions",
}

// definitionVersion tells one state of a CustomResourceDefinition's spec from
// every other: another uid is another definition of the same name, another
// generation another schema, storage or set of versions.
type definitionVersion struct {
	uid        types.UID
	generation int64
}

// definition is what a feed needs to know of a CustomResourceDefinition.
type definition struct {
	definitionVersion
	served     bool     // it defines the version that was asked for
	selectable []string // JSON paths of the version's selectable fields
}

// customResourceDefinition is the part of one that is read.
type customResourceDefinition struct {
	Metadata struct {
		UID        types.UID
		Generation int64
	}
	Spec struct {
		Versions []struct {
			Name             string
			Served           bool
			SelectableFields []struct {
				JSONPath string `json:"jsonPath"`
			}
		}
	}
}

// define reads the definition of a custom resource. Who may not look, or finds
// none, follows the resource without: upstream ends its watches when the
// definition changes.
func define(ctx context.Context, c *client.Client, gvr schema.GroupVersionResource) (definition, error) {
	var crd customResourceDefinition
	err := c.Read(ctx, definitionResource, client.ResourcePath(definitionResource, "")+"/"+definitionName(gvr), &crd)
	switch {
	case apierrors.IsNotFound(err), apierrors.IsForbidden(err):
		return definition{}, nil
	case err != nil:
		return definition{}, err
	}
	d := definition{definitionVersion: definitionVersion{crd.Metadata.UID, crd.Metadata.Generation}}
	for _, v := range crd.Spec.Versions {
		if v.Name != gvr.Version {
			continue
		}
		d.served = v.Served
		for _, f := range v.SelectableFields {
			d.selectable = append(d.selectable, f.JSONPath)
		}
	}
	return d, nil
}

// definitionName is the name of the CustomResourceDefinition of a resource.
func definitionName(gvr schema.GroupVersionResource) string { return gvr.Resource + "." + gvr.Group }
