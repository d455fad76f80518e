package config

import (
	"fmt"
	"slices"

	"k8s.io/apimachinery/pkg/util/validation/field"
)

// KeptPaths are the fields that objects have in each view. Clients need them to tell objects apart.
var KeptPaths = []Path{
	{{Key: "apiVersion"}},
	{{Key: "kind"}},
	{{Key: "metadata"}, {Key: "name"}},
	{{Key: "metadata"}, {Key: "namespace"}},
	{{Key: "metadata"}, {Key: "uid"}},
	{{Key: "metadata"}, {Key: "resourceVersion"}},
}

// validatePaths checks the paths of a list. Paths must not be above, equal to or below apart.
func validatePaths(path *field.Path, texts []string, apart []Path) (errs field.ErrorList) {
	seen := map[string]bool{}
	for i, text := range texts {
		p, err := ParsePath(text)
		overlaps := func(k Path) bool {
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
