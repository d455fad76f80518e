package exchange

import (
	"slices"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/watchproxy/watchproxy/proxy/projection"
)

// View is the API with less of each object, or with fewer objects, at an address of its own.
type View struct {
	Name      string
	Resources []schema.GroupResource // empty for all
	Fields    *projection.Projection
	// Allowed shows a user those namespaces that it may read, if it may not read all.
	Allowed bool
}

// ViewPrefix begins the paths of views. The name of the view and a usual path follow.
const ViewPrefix = "/views/"

// String returns the view's name, or "" for no view.
func (v *View) String() string {
	if v == nil {
		return ""
	}
	return v.Name
}

// Of returns the fields that stay of a resource's objects; nil for all. A request without a view
// has a nil View.
func (v *View) Of(gr schema.GroupResource) *projection.Projection {
	if v == nil || !v.changes(gr) {
		return nil
	}
	return v.Fields
}

func (v *View) changes(gr schema.GroupResource) bool {
	return len(v.Resources) == 0 || slices.Contains(v.Resources, gr)
}

// Narrows reports whether a read of all namespaces shows those that its sender may read.
func (v *View) Narrows(rt Route) bool {
	if v == nil || !v.Allowed || rt.Namespace != "" || rt.Name != "" || rt.Subresource != "" ||
		rt.Verb != "list" && rt.Verb != "watch" {
		return false
	}
	gr := rt.GVR.GroupResource()
	return IsNamespaces(gr) || v.changes(gr)
}

// IsNamespaces reports whether a resource is namespaces themselves.
func IsNamespaces(gr schema.GroupResource) bool {
	return gr == schema.GroupResource{Resource: "namespaces"}
}
