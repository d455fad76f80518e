package config

import (
	"fmt"
	"slices"

	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/watchproxy/watchproxy/config/fieldpath"
)

// View cuts objects down to some of their fields. It has either Fields or Drop. A path of a field
// is written as spec.nodeName, as metadata.labels["app.kubernetes.io/name"] if a key contains dots,
// or as status.conditions[*].type for all items of a list.
type View struct {
	// Name is the name of the view in addresses: /views/NAME. It has at most 63 lower-case letters,
	// digits and hyphens.
	Name string `json:"name"`
	// Resources lists the resources whose objects are cut, as resource or resource.group, in any
	// version. Without resources, the view cuts the objects of all resources.
	Resources []string `json:"resources,omitempty"`
	// Fields lists the paths of the fields that objects keep, such as spec.nodeName,
	// metadata.labels["app.kubernetes.io/name"] or status.conditions[*].type. Objects also keep
	// apiVersion, kind, metadata.name, metadata.namespace, metadata.uid and
	// metadata.resourceVersion.
	Fields []string `json:"fields,omitempty"`
	// Drop lists the paths of the fields that objects lose, instead of Fields. Objects keep all
	// other fields.
	Drop []string `json:"drop,omitempty"`
}

// kept are the fields that objects have in each view. Clients need them to tell objects apart.
var kept = []fieldpath.Path{
	{{Key: "apiVersion"}},
	{{Key: "kind"}},
	{{Key: "metadata"}, {Key: "name"}},
	{{Key: "metadata"}, {Key: "namespace"}},
	{{Key: "metadata"}, {Key: "uid"}},
	{{Key: "metadata"}, {Key: "resourceVersion"}},
}

func validateViews(path *field.Path, views []View) (errs field.ErrorList) {
	for i, v := range views {
		at := path.Index(i)
		errs = append(errs, v.validate(at)...)
		if slices.ContainsFunc(views[:i], func(before View) bool { return before.Name == v.Name }) {
			errs = append(errs, field.Duplicate(at.Child("name"), v.Name))
		}
	}
	return errs
}

func (v *View) validate(path *field.Path) (errs field.ErrorList) {
	for _, problem := range validation.IsDNS1123Label(v.Name) {
		errs = append(errs, field.Invalid(path.Child("name"), v.Name, problem))
	}
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
	case len(v.Fields) == 0 && len(v.Drop) == 0:
		errs = append(errs, field.Required(path.Child("fields"), "list the fields to keep, or list fields in drop"))
	}
	errs = append(errs, validatePaths(path.Child("fields"), v.Fields, nil)...)
	return append(errs, validatePaths(path.Child("drop"), v.Drop, kept)...)
}

// validatePaths checks the paths of a list. Paths must not be above, equal to or below apart.
func validatePaths(path *field.Path, texts []string, apart []fieldpath.Path) (errs field.ErrorList) {
	seen := map[string]bool{}
	for i, text := range texts {
		p, err := fieldpath.Parse(text)
		overlaps := func(k fieldpath.Path) bool {
			n := min(len(p), len(k))
			return slices.Equal(p[:n], k[:n])
		}
		switch at := path.Index(i); {
		case err != nil:
			errs = append(errs, field.Invalid(at, text, err.Error()))
			continue
		case seen[p.String()]:
			errs = append(errs, field.Duplicate(at, text))
		case slices.ContainsFunc(apart, overlaps):
			errs = append(errs, field.Invalid(at, text, fmt.Sprintf("must not be dropped: objects keep %v", apart)))
		}
		seen[p.String()] = true
	}
	return errs
}
