package object

import "k8s.io/apimachinery/pkg/runtime/schema"

// InternalMetadata says which objects have other metadata than upstream shows of them alone or in
// the row of a Table.
//
// kube-apiserver makes such metadata (PartialObjectMetadata) from its internal version of the API.
// Some fields of that version do not exist in an older version. There, annotations stand for them.
// So objects of that version have annotations that their metadata lacks. These are the conversions
// of kube-apiserver 1.37 that change metadata (k8s.io/kubernetes/pkg/apis).
type InternalMetadata struct {
	// All means that almost all objects have such an annotation.
	All bool
	// Annotation means that only the objects with this annotation have other metadata.
	Annotation string
}

// InternalMetadataOf returns the zero value if all metadata is the objects' own.
func InternalMetadataOf(gvr schema.GroupVersionResource) InternalMetadata {
	switch gvr {
	case schema.GroupVersionResource{Group: "apps", Version: "v1", Resource: "daemonsets"}: // the template's generation
		return InternalMetadata{All: true}
	case schema.GroupVersionResource{Group: "autoscaling", Version: "v1", Resource: "horizontalpodautoscalers"}: // metrics, behavior, conditions
		return InternalMetadata{All: true}
	case schema.GroupVersionResource{Group: "apps", Version: "v1", Resource: "deployments"}:
		return InternalMetadata{Annotation: "deprecated.deployment.rollback.to"}
	case schema.GroupVersionResource{Group: "flowcontrol.apiserver.k8s.io", Version: "v1beta3", Resource: "prioritylevelconfigurations"}: // up to 1.31
		return InternalMetadata{Annotation: "flowcontrol.k8s.io/v1beta3-preserve-zero-concurrency-shares"}
	}
	return InternalMetadata{}
}

// Differs reports whether any object has other metadata.
func (m InternalMetadata) Differs() bool { return m != InternalMetadata{} }

// InternalMetadata says which of the resource's objects have other metadata.
func (r *Resource) InternalMetadata() InternalMetadata { return InternalMetadataOf(r.GVR) }
