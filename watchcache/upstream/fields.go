package upstream

import (
	"strings"

	"github.com/tidwall/gjson"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/watchproxy/watchproxy/watchcache"
)

// builtinFields are the field labels of built-in resources beside metadata.name
// and metadata.namespace, as their registries in kube-apiserver 1.36 know them
// (k8s.io/kubernetes/pkg/registry, SelectableFields and the conversions of field
// labels in pkg/apis). Discovery does not tell them.
func builtinFields(gvr schema.GroupVersionResource) []watchcache.Field {
	switch (schema.GroupResource{Group: gvr.Group, Resource: gvr.Resource}) {
	case schema.GroupResource{Resource: "pods"}:
		return []watchcache.Field{
			{Name: "spec.nodeName", Paths: []string{"spec.nodeName"}, Kept: true, Final: true}, // every kubelet's
			at("spec.host", "spec.nodeName"),
			at("spec.restartPolicy"),
			at("spec.schedulerName"),
			at("spec.serviceAccountName"),
			orElse("false", at("spec.hostNetwork")),
			at("status.phase"),
			at("status.podIP"),
			{Name: "status.podIPs"}, // accepted, and nobody has any
			at("status.nominatedNodeName"),
		}
	case schema.GroupResource{Resource: "nodes"}:
		return []watchcache.Field{orElse("false", at("spec.unschedulable"))}
	case schema.GroupResource{Resource: "namespaces"}:
		return []watchcache.Field{at("status.phase")}
	case schema.GroupResource{Resource: "secrets"}:
		return []watchcache.Field{at("type")}
	case schema.GroupResource{Resource: "services"}:
		return []watchcache.Field{at("spec.clusterIP"), at("spec.type")}
	case schema.GroupResource{Resource: "replicationcontrollers"}:
		return []watchcache.Field{orElse("0", at("status.replicas"))}
	case schema.GroupResource{Group: "batch", Resource: "jobs"}:
		return []watchcache.Field{orElse("0", at("status.successful", "status.succeeded"))}
	case schema.GroupResource{Resource: "events"}:
		return eventFields("involvedObject", "reportingComponent",
			at("source", "source.component", "reportingComponent"))
	case schema.GroupResource{Group: "events.k8s.io", Resource: "events"}:
		return eventFields("regarding", "reportingController")
	case schema.GroupResource{Group: "certificates.k8s.io", Resource: "certificatesigningrequests"},
		schema.GroupResource{Group: "certificates.k8s.io", Resource: "clustertrustbundles"}:
		return []watchcache.Field{at("spec.signerName")}
	case schema.GroupResource{Group: "certificates.k8s.io", Resource: "podcertificaterequests"}:
		return []watchcache.Field{at("spec.signerName"), at("spec.podName"), at("spec.nodeName")}
	case schema.GroupResource{Group: "resource.k8s.io", Resource: "resourceslices"}:
		return []watchcache.Field{at("spec.nodeName"), at("spec.driver")}
	}
	return nil
}

// at is a field that stands at its own name, or at other paths.
func at(name string, paths ...string) watchcache.Field {
	if len(paths) == 0 {
		paths = []string{name}
	}
	return watchcache.Field{Name: name, Paths: paths}
}

func orElse(value string, f watchcache.Field) watchcache.Field {
	f.Default = value
	return f
}

func eventFields(about, controller string, more ...watchcache.Field) []watchcache.Field {
	fields := append(more, at("reason"), at(controller), at("type"))
	for _, part := range []string{"kind", "namespace", "name", "uid", "apiVersion", "resourceVersion", "fieldPath"} {
		fields = append(fields, at(about+"."+part))
	}
	return fields
}

// noNamespaceField tells the one namespaced resource that does not know
// metadata.namespace as a field label.
func noNamespaceField(gvr schema.GroupVersionResource) bool {
	return gvr.Group == "certificates.k8s.io" && gvr.Resource == "podcertificaterequests"
}

// noWatchCache tells resources that kube-apiserver serves straight from etcd:
// their watches have no bookmarks but the one that ends the initial state.
func noWatchCache(gvr schema.GroupVersionResource) bool {
	return gvr.Resource == "events" && (gvr.Group == "" || gvr.Group == "events.k8s.io")
}

// customFields are the selectable fields of a custom resource's version. Their
// paths are written ".spec.color".
func customFields(jsonPaths []string) (fields []watchcache.Field) {
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
