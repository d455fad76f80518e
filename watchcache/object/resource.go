package object

import (
	"errors"
	"fmt"
	"slices"

	"github.com/tidwall/gjson"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/json"
)

// Resource describes the resource of a cache and the fields for selectors. It does not change
// during the life of a cache.
type Resource struct {
	GVR schema.GroupVersionResource
	// Kind is the kind of one object, for example "Pod".
	Kind string
	// ListKind is the kind of a collection, for example "PodList".
	ListKind   string
	Namespaced bool
	// SelfDescribing distinguishes the two forms of kube-apiserver's JSON. It is false for built-in
	// types: single objects begin with kind and apiVersion, and list items lack both. It is true
	// for custom resources: keys are sorted, and list items have kind and apiVersion.
	SelfDescribing bool
	// Fields contains the field labels except metadata.name and metadata.namespace. Kept fields
	// come first.
	Fields []Field
	// NoNamespaceField marks a namespaced resource without the field label metadata.namespace.
	NoNamespaceField bool
	// NoWatchCache marks a resource that kube-apiserver serves directly from etcd.
	NoWatchCache bool
	// Converted marks a custom resource whose objects a webhook may convert. Upstream's watch cache
	// keeps old conversions, but a get of the most recent state is converted anew.
	Converted bool
	Encoding  Encoding
	Scope     Scope
	// Columns is set only if Encoding is Table.
	Columns Columns
}

// Encoding is the encoding of a cache's objects. A resource that is used in several encodings has
// several caches. The proxy never converts encodings, because a converter would drop unknown
// fields.
type Encoding uint8

const (
	// JSON exists for every resource.
	JSON Encoding = iota
	// Protobuf exists for built-in types only.
	Protobuf
	// Table is the encoding of a cache of Table rows (meta.k8s.io). A row has no labels, and its
	// object is not kept.
	Table
)

// ErrNoEncoding means that upstream has no such encoding of a resource.
var ErrNoEncoding = errors.New("resource has no such encoding")

// String returns the encoding's name in logs and metrics.
func (e Encoding) String() string {
	return [...]string{JSON: "json", Protobuf: "protobuf", Table: "table"}[e]
}

// Field is a field label of a resource.
type Field struct {
	// Name is the label in selectors, for example "spec.nodeName".
	Name string
	// Paths are the places of the value in the object's JSON, in gjson's syntax. The first value
	// that is present and not empty counts.
	Paths []string
	// Default is the value of an object without a value at Paths or Wire.
	Default string
	// Wire contains the places in the object's protobuf message, like Paths.
	Wire []WirePath
	// Kept means that the value is read once, when the object arrives, and stored. Other values are
	// read each time a selector needs them, except those of long objects. Fields that many watches
	// use should be Kept.
	Kept bool
	// Final means that the value does not change once it is set.
	Final bool
}

func (f *Field) read(e Encoding, object []byte) string {
	if e == Protobuf {
		for _, path := range f.Wire {
			if v := path.Value(object); v != "" {
				return v
			}
		}
		return f.Default
	}
	for _, path := range f.Paths {
		if v := fieldValueOf(gjson.Get(lend(object), path)); v != "" {
			return v
		}
	}
	return f.Default
}

// fieldValueOf returns a value in the form that kube-apiserver compares with a selector: the
// decoded value as Go prints it. Values other than strings, booleans and integers occur only in
// custom resources that were written in another version.
func fieldValueOf(v gjson.Result) string {
	if v.Type != gjson.Number && v.Type != gjson.JSON {
		return v.String()
	}
	var decoded any
	if err := json.Unmarshal([]byte(v.Raw), &decoded); err != nil {
		return v.Raw
	}
	return fmt.Sprint(decoded)
}

// APIVersion returns the group and version in the form of objects: "v1", "apps/v1".
func (r *Resource) APIVersion() string { return r.GVR.GroupVersion().String() }

// typeMeta returns what follows the opening brace of a built-in object.
func (r *Resource) typeMeta() string {
	return `"kind":"` + r.Kind + `","apiVersion":"` + r.APIVersion() + `",`
}

// Key returns the cache key of an object: "namespace/name", or "name" for cluster-scoped resources.
func (r *Resource) Key(namespace, name string) string {
	if !r.Namespaced {
		return name
	}
	return namespace + "/" + name
}

// KeyRange returns the half-open range of keys of a namespace. If namespace is empty, the range
// contains all namespaces. An empty to means no upper bound.
func (r *Resource) KeyRange(namespace string) (from, to string) {
	if !r.Namespaced || namespace == "" {
		return "", ""
	}
	return namespace + "/", namespace + "0" // '0' follows '/' in ASCII
}

// internalMetadata are the resources for which kube-apiserver 1.37 converts metadata
// (k8s.io/kubernetes/pkg/apis). These parts of an object become annotations: the template's
// generation, a rollback, and metrics, behavior and conditions. The last resource is for 1.31.
var internalMetadata = []schema.GroupVersionResource{
	{Group: "apps", Version: "v1", Resource: "daemonsets"},
	{Group: "apps", Version: "v1", Resource: "deployments"},
	{Group: "autoscaling", Version: "v1", Resource: "horizontalpodautoscalers"},
	{
		Group: "flowcontrol.apiserver.k8s.io", Version: "v1beta3",
		Resource: "prioritylevelconfigurations",
	},
}

// InternalMetadata reports whether upstream may show other metadata of a resource's objects alone,
// or in the rows of Tables, than in the objects.
//
// kube-apiserver makes such metadata (PartialObjectMetadata) from its internal version of the API.
// In older versions, annotations stand for some of its fields. The metadata lacks them.
func InternalMetadata(gvr schema.GroupVersionResource) bool {
	return slices.Contains(internalMetadata, gvr)
}
