package config

import (
	"cmp"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/selection"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

var variable = regexp.MustCompile(`\$\(([A-Za-z_][A-Za-z0-9_]*)\)`)

// Expanded returns the scope with the values of environment variables in place of $(NAME).
func (s Scope) Expanded() Scope { return s.expanded(os.Getenv) }

// Expand expands the scopes of a configuration that may be for another machine, so that the rest of
// them can be validated here. Variables that are not set here have the value x.
func (c *Cache) Expand() {
	for i, s := range c.Scopes {
		c.Scopes[i] = s.expanded(func(name string) string { return cmp.Or(os.Getenv(name), "x") })
	}
}

func (s Scope) expanded(value func(name string) string) Scope {
	s.Namespaces = slices.Clone(s.Namespaces)
	for i, name := range s.Namespaces {
		s.Namespaces[i] = expand(name, value)
	}
	s.FieldSelector = expand(s.FieldSelector, value)
	s.LabelSelector = expand(s.LabelSelector, value)
	return s
}

func expand(text string, value func(name string) string) string {
	return variable.ReplaceAllStringFunc(text, func(of string) string { return value(of[2 : len(of)-1]) })
}

func (s *Scope) validate(path *field.Path) (errs field.ErrorList) {
	if len(s.Resources) == 0 && len(s.Namespaces) == 0 && s.FieldSelector == "" && s.LabelSelector == "" {
		errs = append(errs, field.Required(path,
			"limit the scope by resources, namespaces, fieldSelector or labelSelector"))
	}
	if s.Warm && len(s.Resources) == 0 {
		errs = append(errs, field.Required(path.Child("resources"), "list the resources whose caches are warm"))
	}
	for i, name := range s.Namespaces {
		errs = append(errs, validateExpanded(path.Child("namespaces").Index(i), name, validation.IsDNS1123Label)...)
	}
	if s.FieldSelector != "" {
		errs = append(errs, validateExpanded(path.Child("fieldSelector"), s.FieldSelector, fieldSelector)...)
	}
	if s.LabelSelector != "" {
		errs = append(errs, validateExpanded(path.Child("labelSelector"), s.LabelSelector, labelSelector)...)
	}
	return errs
}

// validateExpanded checks a text with environment variables, and then the text with their values.
func validateExpanded(path *field.Path, text string, check func(string) []string) field.ErrorList {
	var problems []string
	for _, found := range variable.FindAllStringSubmatch(text, -1) {
		if os.Getenv(found[1]) == "" {
			problems = append(problems, fmt.Sprintf("the environment variable %s is not set", found[1]))
		}
	}
	if strings.Contains(variable.ReplaceAllString(text, ""), "$") {
		problems = append(problems, "must name environment variables as $(NAME)")
	}
	if len(problems) == 0 {
		text = expand(text, os.Getenv)
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
			return []string{fmt.Sprintf("%q must have the form FIELD=VALUE, with a value, without spaces", r.Field)}
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
