package discovery

import (
	"context"
	"encoding/json"

	"github.com/tidwall/gjson"
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

// UnmarshalJSON reads the Version of a definition.
func (v *Version) UnmarshalJSON(definition []byte) error {
	var o metav1.PartialObjectMetadata
	err := json.Unmarshal(definition, &o)
	*v = Version{o.UID, o.Generation}
	return err
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

// Define reads the definition of a custom resource. If the definition is missing or the proxy may
// not read it, Define returns a Definition without a version. The feed works without it, because
// upstream ends watches when the definition changes.
func Define(
	ctx context.Context, c *client.Client, gvr schema.GroupVersionResource,
) (Definition, error) {
	var crd json.RawMessage
	path := client.ResourcePath(definitionResource, "") + "/" + DefinitionName(gvr)
	err := c.Read(ctx, definitionResource, path, &crd)
	switch {
	case apierrors.IsNotFound(err), apierrors.IsForbidden(err):
		return Definition{converted: true}, nil
	case err != nil:
		return Definition{}, err
	}
	spec := gjson.GetBytes(crd, "spec")
	version := spec.Get(`versions.#(name=="` + gvr.Version + `")`)
	return Definition{
		served:     version.Get("served").Bool(),
		Selectable: texts(version.Get("selectableFields.#.jsonPath")),
		Columns:    texts(version.Get("additionalPrinterColumns.#.jsonPath")),
		converted:  spec.Get("conversion.strategy").Str == "Webhook",
		Version: Version{
			types.UID(gjson.GetBytes(crd, "metadata.uid").Str),
			gjson.GetBytes(crd, "metadata.generation").Int(),
		},
	}, nil
}

func texts(array gjson.Result) (all []string) {
	for _, text := range array.Array() {
		all = append(all, text.Str)
	}
	return all
}

// DefinitionName is the name of the CustomResourceDefinition of a resource.
func DefinitionName(of schema.GroupVersionResource) string { return of.Resource + "." + of.Group }
