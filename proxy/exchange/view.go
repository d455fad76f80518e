package exchange

import (
	"slices"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/watchproxy/watchproxy/proxy/projection"
)

// View is the API with less of each object, at an address of its own.
type View struct {
	Name      string
	Resources []schema.GroupResource // empty for all
	Fields    *projection.Projection
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
	if v == nil || len(v.Resources) > 0 && !slices.Contains(v.Resources, gr) {
		return nil
	}
	return v.Fields
}
