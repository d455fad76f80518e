package config

import (
	"fmt"
	"slices"

	"k8s.io/apimachinery/pkg/util/validation/field"
)

// KeptFields are the fields that objects have in each view. Clients distinguish objects by them.
var KeptFields = []string{
	"apiVersion", "kind", "metadata.name", "metadata.namespace", "metadata.uid",
	"metadata.resourceVersion",
}

// validatePaths checks the paths of a list. None may be equal to, above or below a path in kept.
func validatePaths(path *field.Path, texts, kept []string) (errs field.ErrorList) {
	var seen []Path
	for i, text := range texts {
		p, err := ParsePath(text)
		equal := func(o Path) bool { return slices.Equal(o, p) }
		overlaps := func(field string) bool {
			o, _ := ParsePath(field)
			n := min(len(p), len(o))
			return slices.Equal(p[:n], o[:n])
		}
		switch at := path.Index(i); {
		case err != nil:
			errs = append(errs, field.Invalid(at, text, err.Error()))
		case slices.ContainsFunc(seen, equal):
			errs = append(errs, field.Duplicate(at, text))
		case slices.ContainsFunc(kept, overlaps):
			errs = append(errs,
				field.Invalid(at, text, fmt.Sprintf("must not be dropped: objects keep %v", kept)))
		}
		seen = append(seen, p)
	}
	return errs
}
