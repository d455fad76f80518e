package client

import (
	"slices"
	"strings"

	"github.com/tidwall/gjson"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes/scheme"

	"github.com/watchproxy/watchproxy/watchcache/object"
)

// BuiltinFields returns the field labels of a built-in resource, except metadata.name and
// metadata.namespace. Discovery does not list field labels. These are the labels of kube-apiserver
// 1.36 (SelectableFields in k8s.io/kubernetes/pkg/registry, and the conversions of field labels in
// pkg/apis). Upstream answers requests with other labels, such as spec.pool.name of resourceslices,
// which is new in 1.37.
func BuiltinFields(gvr schema.GroupVersionResource) []object.Field {
	switch (schema.GroupResource{Group: gvr.Group, Resource: gvr.Resource}) {
	case schema.GroupResource{Resource: "pods"}:
		return []object.Field{
			// Every kubelet uses this label.
			{Name: "spec.nodeName", Paths: []string{"spec.nodeName"}, Kept: true, Final: true},
			at("spec.host", "spec.nodeName"),
			at("spec.restartPolicy"),
			at("spec.schedulerName"),
			at("spec.serviceAccountName"),
			orElse("false", at("spec.hostNetwork")),
			at("status.phase"),
			at("status.podIP"),
			{Name: "status.podIPs"}, // accepted by kube-apiserver, but no pod has a value
			at("status.nominatedNodeName"),
		}
	case schema.GroupResource{Resource: "nodes"}:
		return []object.Field{orElse("false", at("spec.unschedulable"))}
	case schema.GroupResource{Resource: "namespaces"}:
		return []object.Field{at("status.phase")}
	case schema.GroupResource{Resource: "secrets"}:
		return []object.Field{at("type")}
	case schema.GroupResource{Resource: "services"}:
		return []object.Field{at("spec.clusterIP"), at("spec.type")}
	case schema.GroupResource{Resource: "replicationcontrollers"}:
		return []object.Field{orElse("0", at("status.replicas"))}
	case schema.GroupResource{Group: "batch", Resource: "jobs"}:
		return []object.Field{orElse("0", at("status.successful", "status.succeeded"))}
	case schema.GroupResource{Resource: "events"}:
		return eventFields("involvedObject", "reportingComponent",
			at("source", "source.component", "reportingComponent"))
	case schema.GroupResource{Group: "events.k8s.io", Resource: "events"}:
		return eventFields("regarding", "reportingController")
	case schema.GroupResource{Group: "certificates.k8s.io", Resource: "certificatesigningrequests"},
		schema.GroupResource{Group: "certificates.k8s.io", Resource: "clustertrustbundles"}:
		return []object.Field{at("spec.signerName")}
	case schema.GroupResource{Group: "certificates.k8s.io", Resource: "podcertificaterequests"}:
		return []object.Field{at("spec.signerName"), at("spec.podName"), at("spec.nodeName")}
	case schema.GroupResource{Group: "resource.k8s.io", Resource: "resourceslices"}:
		return []object.Field{at("spec.nodeName"), at("spec.driver")}
	}
	return nil
}

// at returns a field whose value is at the path of its own name, or at the given paths.
func at(name string, paths ...string) object.Field {
	if len(paths) == 0 {
		paths = []string{name}
	}
	return object.Field{Name: name, Paths: paths}
}

func orElse(value string, f object.Field) object.Field {
	f.Default = value
	return f
}

func eventFields(about, controller string, more ...object.Field) []object.Field {
	fields := append(more, at("reason"), at(controller), at("type"))
	const parts = "kind namespace name uid apiVersion resourceVersion fieldPath"
	for part := range strings.FieldsSeq(parts) {
		fields = append(fields, at(about+"."+part))
	}
	return fields
}

// NoNamespaceField reports whether a namespaced resource lacks the field label metadata.namespace.
func NoNamespaceField(gvr schema.GroupVersionResource) bool {
	return gvr.Group == "certificates.k8s.io" && gvr.Resource == "podcertificaterequests"
}

// NoWatchCache reports whether kube-apiserver serves a resource directly from etcd, without a watch
// cache. A watch of such a resource gets no bookmarks, except at the end of the initial state.
func NoWatchCache(gvr schema.GroupVersionResource) bool {
	return gvr.Resource == "events" && (gvr.Group == "" || gvr.Group == "events.k8s.io")
}

// CustomFields returns the selectable fields of a custom resource's version. The JSON paths have
// the form ".spec.color".
func CustomFields(jsonPaths []string) (fields []object.Field) {
	for _, path := range jsonPaths {
		name := strings.TrimPrefix(path, ".")
		var escaped []string
		for part := range strings.SplitSeq(name, ".") {
			escaped = append(escaped, gjson.Escape(part))
		}
		fields = append(fields, at(name, strings.Join(escaped, ".")))
	}
	return fields
}

// OnTheWire adds the protobuf paths of field labels' values. For protobuf, it drops labels without
// a known path. Upstream then answers requests with these labels. The field numbers are in the tags
// of the API's Go types. No object is decoded into these types.
func OnTheWire(r *object.Resource, fields []object.Field) []object.Field {
	if r.Encoding != object.Protobuf {
		return fields
	}
	message, known := scheme.Scheme.AllKnownTypes()[r.GVR.GroupVersion().WithKind(r.Kind)]
	for i := range fields {
		for _, path := range fields[i].Paths {
			if !known {
				break
			}
			if wire, ok := object.NewWirePath(message, path); ok {
				fields[i].Wire = append(fields[i].Wire, wire)
			}
		}
	}
	return slices.DeleteFunc(fields, func(f object.Field) bool {
		return len(f.Paths) > 0 && len(f.Wire) == 0
	})
}
