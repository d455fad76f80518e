package object

import (
	"errors"
	"fmt"

	"github.com/tidwall/gjson"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/json"
)

// Resource names the resource of a cache and the fields that selectors
// may use. It does not change during the life of a cache.
type Resource struct {
	// GVR is the resource as it appears in request paths.
	GVR schema.GroupVersionResource
	// Kind is the kind of one object, for example "Pod".
	Kind string
	// ListKind is the kind of a collection, for example "PodList".
	ListKind string
	// Namespaced tells whether objects live in namespaces.
	Namespaced bool
	// SelfDescribing distinguishes two ways in which kube-apiserver writes JSON. It is false for
	// built-in types: a single object begins with kind and apiVersion, and list items lack both. It
	// is true for custom resources: keys are sorted, and list items have kind and apiVersion.
	SelfDescribing bool
	// Fields are the resource's field selector labels other than metadata.name and
	// metadata.namespace. Fields that are Kept come first.
	Fields []Field
	// NoNamespaceField marks a namespaced resource that does not support metadata.namespace as a
	// field label.
	NoNamespaceField bool
	// NoWatchCache marks a resource that kube-apiserver serves straight from etcd.
	NoWatchCache bool
	// Encoding is the encoding of the objects.
	Encoding Encoding
	// Columns is set only if Encoding is Table.
	Columns Columns
}

// Encoding is the encoding of a cache's objects. A resource that is used in several encodings has
// several caches. The proxy never converts one encoding into another, because a converter would
// drop fields that it does not know.
type Encoding uint8

const (
	// JSON exists for every resource.
	JSON Encoding = iota
	// Protobuf exists for built-in types only.
	Protobuf
	// Table is for a cache of the rows of Tables (meta.k8s.io). A row has no labels, and its object is
	// not kept.
	Table
)

// ErrNoEncoding says that upstream has no such encoding of a resource.
var ErrNoEncoding = errors.New("resource has no such encoding")

// String names the encoding for logs and metrics.
func (e Encoding) String() string {
	return [...]string{JSON: "json", Protobuf: "protobuf", Table: "table"}[e]
}

// Field is a field label of a resource.
type Field struct {
	// Name is the label as selectors write it, for example "spec.nodeName".
	Name string
	// Paths locate the value in the object's JSON, in gjson's syntax. The first value that is
	// present and not empty counts.
	Paths []string
	// Default is the value if none is present.
	Default string
	// Wire locates the value in the object's protobuf message. The first value that is present and
	// not empty counts.
	Wire []WirePath
	// Kept values are read once, when the object arrives, and stored. Other values are read each
	// time a selector needs them. Fields that many watches select by should be Kept.
	Kept bool
	// Final values do not change once they are set.
	Final bool
}

// read finds the field's value in an object.
func (f *Field) read(e Encoding, object []byte) string {
	if e == Protobuf {
		for _, path := range f.Wire {
			if v := protoScalar(object, path); v != "" {
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

// fieldValueOf returns a value as kube-apiserver compares it with a selector: the decoded value as
// Go prints it. Values other than strings, booleans and integers occur only in custom resources
// that were written in another version.
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

// APIVersion is the group and version as objects carry it: "v1", "apps/v1".
func (r *Resource) APIVersion() string { return r.GVR.GroupVersion().String() }

// typeMeta is the text with kind and apiVersion between the opening brace and the metadata of a
// built-in object.
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

// KeyRange returns the half-open range of keys of one namespace, or of all namespaces if namespace
// is empty. An empty to means no end.
func (r *Resource) KeyRange(namespace string) (from, to string) {
	if !r.Namespaced || namespace == "" {
		return "", ""
	}
	return namespace + "/", namespace + "0" // '0' follows '/' in ASCII
}
