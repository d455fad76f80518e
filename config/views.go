package config

import (
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// View shows less of the API: objects with some of their fields, or the namespaces that a user may
// read. It has at most one of Fields and Drop. A path of a field is written as spec.nodeName, as
// metadata.labels["app.kubernetes.io/name"] if a key contains dots, or as status.conditions[*].type
// for all items of a list.
type View struct {
	// Name is the name of the view in addresses: /views/NAME. It has at most 63 lower-case letters,
	// digits and hyphens.
	Name string `json:"name" format:"label"`
	// Resources lists the resources that the view changes, as resource or resource.group, in any
	// version. Without resources, it changes all resources, and no warning names fields that no
	// object has.
	Resources []string `json:"resources,omitempty" format:"resource" unique:"yes"`
	// Fields lists the paths of the fields that objects keep, such as spec.nodeName,
	// metadata.labels["app.kubernetes.io/name"] or status.conditions[*].type. Objects also keep
	// apiVersion, kind, metadata.name, metadata.namespace, metadata.uid and
	// metadata.resourceVersion.
	Fields []string `json:"fields,omitempty"`
	// Drop lists the paths of the fields that objects lose, instead of Fields. Objects keep all
	// other fields.
	Drop []string `json:"drop,omitempty"`
	// Namespaces is all or allowed. With allowed, a list or a watch of all namespaces by a user who
	// may not read all of them shows the namespaces in which the user may do the same. Watches of
	// all namespaces begin with the state. This needs authentication.mode delegated.
	Namespaces Namespaces `json:"namespaces,omitempty" default:"all" oneof:"all allowed"`
}

// Namespaces are those that a view shows.
type Namespaces string

// The values of Namespaces.
const (
	AllNamespaces     Namespaces = "all"
	AllowedNamespaces Namespaces = "allowed"
)

func (c *ProxyConfiguration) validateViews(path *field.Path) (errs field.ErrorList) {
	for i, v := range c.Views {
		at := path.Index(i)
		if v.Namespaces == AllowedNamespaces && c.Authentication.Mode == NoAuthentication {
			errs = append(errs, field.Forbidden(at.Child("namespaces"),
				"allowed needs users: set authentication.mode to delegated"))
		}
		switch {
		case len(v.Fields) > 0 && len(v.Drop) > 0:
			errs = append(errs,
				field.Forbidden(at.Child("drop"), "must not be used together with fields"))
		case len(v.Fields) == 0 && len(v.Drop) == 0 && v.Namespaces != AllowedNamespaces:
			errs = append(errs, field.Required(at.Child("fields"),
				"list the fields to keep, list fields in drop, or set namespaces to allowed"))
		}
		errs = append(errs, validatePaths(at.Child("fields"), v.Fields, nil)...)
		errs = append(errs, validatePaths(at.Child("drop"), v.Drop, KeptFields)...)
	}
	return errs
}
