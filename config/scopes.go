package config

import (
	"cmp"
	"errors"
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

// Expand expands the scopes of a configuration for another machine, so that the rest of them can be
// validated here. Variables that are not set here have the value x.
func (c *Cache) Expand() {
	for i, s := range c.Scopes {
		c.Scopes[i] = s.expanded(func(name string) string { return cmp.Or(os.Getenv(name), "x") })
	}
}

func (s Scope) expanded(value func(name string) string) Scope {
	expand := func(text string) string {
		return variable.ReplaceAllStringFunc(text, func(of string) string { return value(of[2 : len(of)-1]) })
	}
	s.Namespaces = slices.Clone(s.Namespaces)
	for i := range s.Namespaces {
		s.Namespaces[i] = expand(s.Namespaces[i])
	}
	s.FieldSelector, s.LabelSelector = expand(s.FieldSelector), expand(s.LabelSelector)
	return s
}

func validateScopes(path *field.Path, scopes []Scope) (errs field.ErrorList) {
	for i, s := range scopes {
		errs = append(errs, s.validate(path.Index(i))...)
	}
	return errs
}

func (s *Scope) validate(path *field.Path) (errs field.ErrorList) {
	for i, name := range s.Resources {
		errs = append(errs, validateResource(path.Child("resources").Index(i), name)...)
	}
	if len(s.Resources) == 0 && len(s.Namespaces) == 0 && s.FieldSelector == "" && s.LabelSelector == "" {
		errs = append(errs, field.Required(path, "limit the scope by resources, namespaces, fieldSelector or labelSelector"))
	}
	if s.Warm && len(s.Resources) == 0 {
		errs = append(errs, field.Required(path.Child("resources"), "list the resources whose caches are warm"))
	}
	expanded := s.Expanded()
	for i, name := range s.Namespaces {
		at := path.Child("namespaces").Index(i)
		if missing := validateVariables(at, name); missing != nil {
			errs = append(errs, missing...)
			continue
		}
		errs = append(errs, validateText(at, expanded.Namespaces[i], validation.IsDNS1123Label)...)
	}
	if at := path.Child("fieldSelector"); s.FieldSelector != "" {
		errs = append(errs, validateSelector(at, s.FieldSelector, func() error { return checkFieldSelector(expanded.FieldSelector) })...)
	}
	if at := path.Child("labelSelector"); s.LabelSelector != "" {
		errs = append(errs, validateSelector(at, s.LabelSelector, func() error { return checkLabelSelector(expanded.LabelSelector) })...)
	}
	return errs
}

func validateSelector(path *field.Path, text string, check func() error) field.ErrorList {
	if missing := validateVariables(path, text); missing != nil {
		return missing
	}
	if err := check(); err != nil {
		return field.ErrorList{field.Invalid(path, text, err.Error())}
	}
	return nil
}

func checkFieldSelector(text string) error {
	selector, err := fields.ParseSelector(text)
	if err != nil {
		return err
	}
	if selector.Empty() {
		return errors.New("selects everything")
	}
	seen := map[string]bool{}
	for _, r := range selector.Requirements() {
		switch {
		case r.Operator == selection.NotEquals, r.Value == "", r.Field != strings.TrimSpace(r.Field), r.Value != strings.TrimSpace(r.Value):
			return fmt.Errorf("%q must have the form FIELD=VALUE, with a value, without spaces", r.Field)
		case seen[r.Field]:
			return fmt.Errorf("%s must not be given twice", r.Field)
		case r.Field == "metadata.namespace":
			return errors.New("list the namespace in namespaces instead of metadata.namespace")
		}
		seen[r.Field] = true
	}
	return nil
}

func checkLabelSelector(text string) error {
	selector, err := labels.Parse(text)
	if err == nil && selector.Empty() {
		err = errors.New("selects everything")
	}
	return err
}

// validateVariables reports environment variables that are not set, or named in another form.
func validateVariables(path *field.Path, text string) (errs field.ErrorList) {
	for _, found := range variable.FindAllStringSubmatch(text, -1) {
		if os.Getenv(found[1]) == "" {
			errs = append(errs, field.Invalid(path, text, fmt.Sprintf("the environment variable %s is not set", found[1])))
		}
	}
	if rest := variable.ReplaceAllString(text, ""); strings.Contains(rest, "$") {
		errs = append(errs, field.Invalid(path, text, "must name environment variables as $(NAME)"))
	}
	return errs
}
