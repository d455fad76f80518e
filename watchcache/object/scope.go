package object

import (
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
)

// Scope is the part of a resource that a cache contains: the objects of a namespace, or the objects
// that selectors match. Only such objects are read from upstream. The zero Scope is the whole
// resource.
//
// A cache of a scope answers a read that upstream would answer from objects of the scope alone. An
// object that enters or leaves the scope appears as ADDED or DELETED on upstream's watch, with the
// object and the resourceVersion that each narrower watch gets.
type Scope struct {
	// Namespace is the only namespace; "" means all.
	Namespace string `json:"namespace,omitempty"`
	// Fields and Labels are selectors in apimachinery's canonical form; "" selects all objects. All
	// requirements of Fields are equalities.
	Fields string `json:"fieldSelector,omitempty"`
	Labels string `json:"labelSelector,omitempty"`
}

// NewScope returns the scope of a namespace and two selectors in any form. Package config has
// checked them: all requirements of fieldSelector are equalities of other fields than
// metadata.namespace, because upstream's later pages would not begin in such a namespace.
func NewScope(namespace, fieldSelector, labelSelector string) (Scope, error) {
	fs, err := fields.ParseSelector(fieldSelector)
	if err != nil {
		return Scope{}, fmt.Errorf("field selector %q: %w", fieldSelector, err)
	}
	ls, err := labels.Parse(labelSelector)
	if err != nil {
		return Scope{}, fmt.Errorf("label selector %q: %w", labelSelector, err)
	}
	return Scope{namespace, fs.String(), ls.String()}, nil
}

// Whole reports whether the scope is the whole resource.
func (s Scope) Whole() bool { return s == Scope{} }

// Selects reports whether the scope is narrower than its namespace.
func (s Scope) Selects() bool { return s.Fields != "" || s.Labels != "" }

// String names the scope in logs, metrics and the status. The whole resource has no name.
func (s Scope) String() string {
	var parts []string
	names := [...]string{"namespace=", "fieldSelector=", "labelSelector="}
	for i, value := range [...]string{s.Namespace, s.Fields, s.Labels} {
		if value != "" {
			parts = append(parts, names[i]+value)
		}
	}
	return strings.Join(parts, " ")
}

// Want is the selection of a read: the parts of its path, and its selectors.
type Want struct {
	Namespace, Name string
	Fields          fields.Selector // nil for none
	Labels          labels.Selector // nil for none
	// Split means that the reader may read some namespaces at most. A resource without namespaces
	// then needs no cache.
	Split bool
}

// Contains reports whether all objects of a read, and all objects that its answer depends on, are
// in the scope. It returns false in every case of doubt, and for a path of all namespaces that
// selects the scope's namespace: the reader may have no right to such paths.
func (s Scope) Contains(w Want) bool {
	if s.Namespace != "" && w.Namespace != s.Namespace {
		return false
	}
	fs, err := fields.ParseSelector(s.Fields)
	if err != nil {
		return false
	}
	for _, r := range fs.Requirements() {
		if w.exact(r.Field) != r.Value {
			return false
		}
	}
	return s.Labels == "" || w.Name == "" && w.includes(s.Labels)
}

// exact returns the value that a read requires of a field, or "". A get requires only its name.
func (w Want) exact(field string) string {
	switch {
	case w.Name != "" && field == "metadata.name":
		return w.Name
	case w.Name != "" || w.Fields == nil:
		return ""
	}
	value, _ := w.Fields.RequiresExactMatch(field)
	return value
}

// includes reports whether the read requires all that a label selector requires.
func (w Want) includes(selector string) bool {
	if w.Labels == nil {
		return false
	}
	needed, err := labels.ParseToRequirements(selector)
	has, selectable := w.Labels.Requirements()
	if err != nil || !selectable {
		return false
	}
	for _, need := range needed {
		same := func(r labels.Requirement) bool { return r.String() == need.String() }
		if !slices.ContainsFunc(has, same) {
			return false
		}
	}
	return true
}
