package object

import (
	"slices"

	"k8s.io/apimachinery/pkg/runtime/schema"
)

// internalMetadata are the resources for which kube-apiserver 1.37 converts metadata
// (k8s.io/kubernetes/pkg/apis), with the parts of an object that become annotations.
var internalMetadata = []schema.GroupVersionResource{
	{Group: "apps", Version: "v1", Resource: "daemonsets"},                                               // the template's generation
	{Group: "apps", Version: "v1", Resource: "deployments"},                                              // a rollback
	{Group: "autoscaling", Version: "v1", Resource: "horizontalpodautoscalers"},                          // metrics, behavior, conditions
	{Group: "flowcontrol.apiserver.k8s.io", Version: "v1beta3", Resource: "prioritylevelconfigurations"}, // up to 1.31
}

// InternalMetadata reports whether upstream may show other metadata of a resource's objects alone,
// or in the rows of Tables, than in the objects.
//
// kube-apiserver makes such metadata (PartialObjectMetadata) from its internal version of the API.
// Some fields of that version do not exist in an older version. There, annotations stand for them.
// So objects of that version have annotations that their metadata lacks.
func InternalMetadata(gvr schema.GroupVersionResource) bool {
	return slices.Contains(internalMetadata, gvr)
}
