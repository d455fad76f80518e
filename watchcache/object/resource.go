package object

import (
	"fmt"

	"github.com/tidwall/gjson"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/json"
)

// Resource names what a cache holds and which fields of its objects selectors
// may ask for. It does not change during the life of a cache.
type Resource struct {
	// GVR is the resource as it stands in request paths.
	GVR schema.GroupVersionResource
	// Kind is the kind of one object, for example "Pod".
	Kind string
	// ListKind is the kind of a collection, for example "PodList".
	ListKind string
	// Namespaced tells whether objects live in namespaces.
	Namespaced bool
	// SelfDescribing tells the two ways in which kube-apiserver writes objects
	// apart. False for built-in types: kind and apiVersion stand first in a
	// single object and are left out of the items of a list. True for custom
	// resources: keys are sorted and items carry both.
	SelfDescribing bool
	// Fields are what field selectors may narrow this resource by, beside
	// metadata.name and metadata.namespace, kept ones first.
	Fields []Field
	// NoNamespaceField tells a namespaced resource that does not know
	// metadata.namespace as a field.
	NoNamespaceField bool
	// NoWatchCache tells a resource that kube-apiserver serves straight from etcd.
	NoWatchCache bool
	// Encoding is how upstream writes the objects.
	Encoding Encoding
}

// Encoding is the form of a cache's bytes. A resource that is read in two has two
// caches: nothing is converted from one to the other, because what converts would
// drop what it does not know.
type Encoding uint8

const (
	// JSON is every resource's.
	JSON Encoding = iota
	// Protobuf is that of built-in types only.
	Protobuf
)

// String names the encoding for logs and metrics.
func (e Encoding) String() string {
	if e == Protobuf {
		return "protobuf"
	}
	return "json"
}

// Field is a field label of a resource.
type Field struct {
	// Name is the label as selectors write it, for example "spec.nodeName".
	Name string
	// Paths are where the value stands in the object's JSON, as gjson writes
	// paths. The first that is there and not empty counts.
	Paths []string
	// Default is the value if none is there.
	Default string
	// Wire is where the value stands in the object's protobuf message. The first
	// that is there and not empty counts.
	Wire []WirePath
	// Kept values are read once, when the object comes; others each time that a
	// selector asks for them. For what many watches select by.
	Kept bool
	// Final values do not change once they are there.
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

// fieldValueOf is a value as kube-apiserver compares it with a selector: as Go
// prints the decoded one. Only a custom resource can have other than strings,
// booleans and integers there, when it was written in another version.
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

// typeMeta is what stands between the opening brace and the metadata of a
// built-in object that describes itself.
func (r *Resource) typeMeta() string {
	return `"kind":"` + r.Kind + `","apiVersion":"` + r.APIVersion() + `",`
}

// Key returns the key under which an object is kept: "namespace/name", or
// "name" for cluster-scoped resources.
func (r *Resource) Key(namespace, name string) string {
	if !r.Namespaced {
		return name
	}
	return namespace + "/" + name
}

// KeyRange returns the half-open range of keys of one namespace, or of
// everything if namespace is empty. The end "" means no end.
func (r *Resource) KeyRange(namespace string) (from, to string) {
	if !r.Namespaced || namespace == "" {
		return "", ""
	}
	return namespace + "/", namespace + "0" // '0' follows '/' in ASCII
}
