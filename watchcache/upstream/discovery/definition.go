package discovery

import (
	"context"
	"encoding/json"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/watchproxy/watchproxy/watchcache/upstream/client"
)

var definitionResource = schema.GroupVersionResource{
	Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions",
}

// Version identifies one state of a CustomResourceDefinition's spec. A different uid means a
// different definition with the same name. A different generation means a different schema, storage
// version or set of versions.
type Version struct {
	UID        types.UID
	Generation int64
}

func (Version) parse(object []byte) (Version, error) {
	var o metav1.PartialObjectMetadata
	err := json.Unmarshal(object, &o)
	return Version{o.UID, o.Generation}, err
}

// After reports whether a definition with version v may have changed since it had version before.
func (v Version) After(before Version) bool {
	return v.UID != before.UID || v.Generation > before.Generation
}

// Definition is the part of a CustomResourceDefinition that a feed needs.
type Definition struct {
	Version
	served     bool     // the definition has the requested version and serves it
	Selectable []string // JSON paths of the version's selectable fields
	Columns    []string // JSON paths of the version's additional printer columns
	converted  bool     // a webhook may convert objects
}

type customResourceDefinition struct {
	Metadata struct {
		UID        types.UID
		Generation int64
	}
	Spec struct {
		Conversion struct{ Strategy string }
		Versions   []struct {
			Name             string
			Served           bool
			SelectableFields []struct {
				JSONPath string `json:"jsonPath"`
			}
			AdditionalPrinterColumns []struct {
				JSONPath string `json:"jsonPath"`
			}
		}
	}
}

// Define reads the definition of a custom resource. If the definition is missing or the proxy may
// not read it, Define returns a Definition without a version. The feed works without it, because
// upstream ends watches when the definition changes.
func Define(ctx context.Context, c *client.Client, gvr schema.GroupVersionResource) (Definition, error) {
	var crd customResourceDefinition
	err := c.Read(ctx, definitionResource, client.ResourcePath(definitionResource, "")+"/"+DefinitionName(gvr), &crd)
	switch {
	case apierrors.IsNotFound(err), apierrors.IsForbidden(err):
		return Definition{converted: true}, nil
	case err != nil:
		return Definition{}, err
	}
	d := Definition{Version: Version{crd.Metadata.UID, crd.Metadata.Generation}, converted: crd.Spec.Conversion.Strategy == "Webhook"}
	for _, v := range crd.Spec.Versions {
		if v.Name != gvr.Version {
			continue
		}
		d.served = v.Served
		for _, f := range v.SelectableFields {
			d.Selectable = append(d.Selectable, f.JSONPath)
		}
		for _, c := range v.AdditionalPrinterColumns {
			d.Columns = append(d.Columns, c.JSONPath)
		}
	}
	return d, nil
}

// DefinitionName is the name of the CustomResourceDefinition of a resource.
func DefinitionName(gvr schema.GroupVersionResource) string { return gvr.Resource + "." + gvr.Group }
