package openapi

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"k8s.io/kube-openapi/pkg/validation/spec"

	"github.com/watchproxy/watchproxy/config/fieldpath"
)

// kind is the kind of a resource's objects, in one version.
type kind struct {
	resource string
	root     *spec.Schema
	schemas  map[string]*spec.Schema
}

// follow returns an error if objects have no field at a path, and the number of steps that fit.
func (k kind) follow(p fieldpath.Path) (int, error) {
	var above []*spec.Schema
	at := k.parts(k.root)
	for i, step := range p {
		below, free := next(at, step)
		if free {
			break
		}
		if below == nil {
			return i, k.explain(p, i, above, at)
		}
		above, at = at, k.parts(below)
	}
	return len(p), nil
}

// parts returns the schemas that a value must fit: s, and those that $ref and allOf add to it.
func (k kind) parts(s *spec.Schema) []*spec.Schema {
	const most = 100 // documents of aggregated APIs may have circles
	parts := []*spec.Schema{s}
	for i := 0; i < len(parts) && len(parts) < most; i++ {
		name := strings.TrimPrefix(parts[i].Ref.String(), "#/components/schemas/")
		if to := k.schemas[name]; to != nil {
			parts = append(parts, to)
		}
		for j := range parts[i].AllOf {
			parts = append(parts, &parts[i].AllOf[j])
		}
	}
	return parts
}

// next returns the schema behind a step, or nil if there is none. free means that the schemas do
// not limit what is there.
func next(at []*spec.Schema, step fieldpath.Step) (below *spec.Schema, free bool) {
	for _, s := range at {
		if step.Items && s.Items != nil && s.Items.Schema != nil {
			return s.Items.Schema, false
		}
		if property, ok := s.Properties[step.Key]; ok && !step.Items {
			return &property, false
		}
	}
	for _, s := range at {
		if a := s.AdditionalProperties; a != nil && !step.Items && (a.Schema != nil || a.Allows) {
			return a.Schema, a.Schema == nil
		}
		if free, _ := s.Extensions.GetBool("x-kubernetes-preserve-unknown-fields"); free {
			return nil, true
		}
	}
	return nil, !slices.ContainsFunc(at, limits)
}

// limits reports whether a schema limits what a value contains.
func limits(s *spec.Schema) bool {
	return len(s.Properties) > 0 || s.AdditionalProperties != nil || s.Items != nil || len(s.Type) > 0 && !s.Type.Contains("object") ||
		slices.ContainsFunc(slices.Concat(s.OneOf, s.AnyOf), func(s spec.Schema) bool { return limits(&s) })
}

// explain returns an error that says why step i of a path does not fit the schemas at it, and how
// to write the path.
func (k kind) explain(p fieldpath.Path, i int, above, at []*spec.Schema) error {
	isMap := func(s *spec.Schema) bool {
		return s.AdditionalProperties != nil && s.AdditionalProperties.Schema != nil
	}
	var names []string
	for _, s := range at {
		for name := range s.Properties {
			names = append(names, name)
		}
	}
	switch is := k.resource + ": " + p[:i].String(); {
	case p[i].Items:
		return fmt.Errorf("%s is no list: write %s", is, slices.Concat(p[:i], p[i+1:]))
	case slices.ContainsFunc(at, func(s *spec.Schema) bool { return s.Items != nil }):
		return fmt.Errorf("%s is a list: write %s", is, slices.Concat(p[:i], fieldpath.Path{{Items: true}}, p[i:]))
	case len(names) == 0 && slices.ContainsFunc(above, isMap): // the dots are part of the key
		var key []string
		for n := i - 1; n < len(p) && !p[n].Items; n++ {
			key = append(key, p[n].Key)
		}
		return fmt.Errorf("%s has no fields: write %s", is, append(p[:i-1:i-1], fieldpath.Step{Key: strings.Join(key, ".")}))
	case len(names) == 0:
		return fmt.Errorf("%s has no fields: write %s", is, p[:i])
	case i == 0:
		return fmt.Errorf("%s has no field %s, but %s", k.resource, p[:1], similar(p[i].Key, names))
	default:
		return fmt.Errorf("%s has no field %s; %s has %s", k.resource, p[:i+1], p[:i], similar(p[i].Key, names))
	}
}

// similar returns at most five names. The first ones have most letters at the beginning and the end
// in common with a mistyped name.
func similar(typed string, names []string) string {
	const most = 5
	common := func(name string) (n int) {
		a, b := strings.ToLower(typed), strings.ToLower(name)
		for n < min(len(a), len(b)) && a[n] == b[n] {
			n++
		}
		for a, b = a[n:], b[n:]; a != "" && b != "" && a[len(a)-1] == b[len(b)-1]; n++ {
			a, b = a[:len(a)-1], b[:len(b)-1]
		}
		return n
	}
	slices.Sort(names)
	names = slices.Compact(names)
	slices.SortStableFunc(names, func(a, b string) int { return cmp.Or(common(b)-common(a), len(a)-len(b)) })
	if len(names) > most {
		names = append(names[:most], "…")
	}
	return strings.Join(names, ", ")
}
