package config

import (
	"cmp"
	"fmt"
	"regexp"
	"strings"

	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/selection"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

var variable = regexp.MustCompile(`\$\(([A-Za-z_][A-Za-z0-9_]*)\)`)

// Expand puts the values of environment variables in place of $(NAME). The name of a variable
// without a value stays, and Validate reports it.
func (c *Cache) Expand(value func(name string) string) {
	expand := func(text string) string {
		return variable.ReplaceAllStringFunc(text, func(of string) string {
			return cmp.Or(value(of[2:len(of)-1]), of)
		})
	}
	for i := range c.Scopes {
		s := &c.Scopes[i]
		for j, name := range s.Namespaces {
			s.Namespaces[j] = expand(name)
		}
		s.FieldSelector, s.LabelSelector = expand(s.FieldSelector), expand(s.LabelSelector)
	}
}

func (s *Scope) validate(path *field.Path) (errs field.ErrorList) {
	selectors := s.FieldSelector + s.LabelSelector
	if len(s.Resources) == 0 && len(s.Namespaces) == 0 && selectors == "" {
		errs = append(errs, field.Required(path,
			"limit the scope by resources, namespaces, fieldSelector or labelSelector"))
	}
	if s.Warm && len(s.Resources) == 0 {
		errs = append(errs,
			field.Required(path.Child("resources"), "list the resources whose caches are warm"))
	}
	for i, name := range s.Namespaces {
		errs = append(errs,
			validateExpanded(path.Child("namespaces").Index(i), name, validation.IsDNS1123Label)...)
	}
	if s.FieldSelector != "" {
		errs = append(errs,
			validateExpanded(path.Child("fieldSelector"), s.FieldSelector, fieldSelector)...)
	}
	if s.LabelSelector != "" {
		errs = append(errs,
			validateExpanded(path.Child("labelSelector"), s.LabelSelector, labelSelector)...)
	}
	return errs
}

// validateExpanded checks a text in which the values of environment variables are in their places.
func validateExpanded(path *field.Path, text string, check func(string) []string) field.ErrorList {
	var problems []string
	for _, found := range variable.FindAllStringSubmatch(text, -1) {
		problems = append(problems, fmt.Sprintf("the environment variable %s is not set", found[1]))
	}
	if strings.Contains(variable.ReplaceAllString(text, ""), "$") {
		problems = append(problems, "must name environment variables as $(NAME), "+
			"and their values must have no $")
	}
	if len(problems) == 0 {
		problems = check(text)
	}
	return invalid(path, text, problems)
}

func fieldSelector(text string) []string {
	selector, err := fields.ParseSelector(text)
	switch {
	case err != nil:
		return []string{err.Error()}
	case selector.Empty():
		return []string{"selects everything"}
	}
	seen := map[string]bool{}
	for _, r := range selector.Requirements() {
		switch {
		case r.Operator == selection.NotEquals, r.Value == "",
			r.Field != strings.TrimSpace(r.Field), r.Value != strings.TrimSpace(r.Value):
			const form = "%q must have the form FIELD=VALUE, with a value, without spaces"
			return []string{fmt.Sprintf(form, r.Field)}
		case seen[r.Field]:
			return []string{r.Field + " must not be given twice"}
		case r.Field == "metadata.namespace":
			return []string{"list the namespace in namespaces instead of metadata.namespace"}
		}
		seen[r.Field] = true
	}
	return nil
}

func labelSelector(text string) []string {
	selector, err := labels.Parse(text)
	switch {
	case err != nil:
		return []string{err.Error()}
	case selector.Empty():
		return []string{"selects everything"}
	}
	return nil
}
