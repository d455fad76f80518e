package config

import (
	"slices"

	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/watchproxy/watchproxy/config/fieldpath"
)

// View shows less of the API: objects with some of their fields, or the namespaces that a user may
// read. It has at most one of Fields and Drop. A path of a field is written as spec.nodeName, as
// metadata.labels["app.kubernetes.io/name"] if a key contains dots, or as status.conditions[*].type
// for all items of a list.
type View struct {
	// Name is the name of the view in addresses: /views/NAME. It has at most 63 lower-case letters,
	// digits and hyphens.
	Name string `json:"name"`
	// Resources lists the resources that the view changes, as resource or resource.group, in any
	// version. Without resources, it changes all resources, and no warning names fields that no
	// object has.
	Resources []string `json:"resources,omitempty"`
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
	Namespaces Namespaces `json:"namespaces,omitempty"`
}

// Namespaces are those that a view shows.
type Namespaces string

// The values of Namespaces.
const (
	AllNamespaces     Namespaces = "all"
	AllowedNamespaces Namespaces = "allowed"
)

func (c *ProxyConfiguration) validateViews(path *field.Path) (errs field.ErrorList) {
	views := c.Views
	for i, v := range views {
		at := path.Index(i)
		errs = append(errs, v.validate(at)...)
		if v.Namespaces == AllowedNamespaces && c.Authentication.Mode == NoAuthentication {
			errs = append(errs, field.Forbidden(at.Child("namespaces"), "allowed needs users: set authentication.mode to delegated"))
		}
		if slices.ContainsFunc(views[:i], func(before View) bool { return before.Name == v.Name }) {
			errs = append(errs, field.Duplicate(at.Child("name"), v.Name))
		}
	}
	return errs
}

func (v *View) validate(path *field.Path) (errs field.ErrorList) {
	errs = append(errs, validateText(path.Child("name"), v.Name, validation.IsDNS1123Label)...)
	for i, name := range v.Resources {
		at := path.Child("resources").Index(i)
		errs = append(errs, validateResource(at, name)...)
		if slices.Contains(v.Resources[:i], name) {
			errs = append(errs, field.Duplicate(at, name))
		}
	}
	switch {
	case len(v.Fields) > 0 && len(v.Drop) > 0:
		errs = append(errs, field.Forbidden(path.Child("drop"), "must not be used together with fields"))
	case len(v.Fields) == 0 && len(v.Drop) == 0 && v.Namespaces != AllowedNamespaces:
		errs = append(errs, field.Required(path.Child("fields"), "list the fields to keep, list fields in drop, or set namespaces to allowed"))
	}
	if v.Namespaces != "" {
		errs = append(errs, validateOneOf(path.Child("namespaces"), v.Namespaces, AllNamespaces, AllowedNamespaces)...)
	}
	errs = append(errs, fieldpath.Validate(path.Child("fields"), v.Fields, nil)...)
	return append(errs, fieldpath.Validate(path.Child("drop"), v.Drop, fieldpath.Kept)...)
}
