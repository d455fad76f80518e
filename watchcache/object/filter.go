package object

import (
	"cmp"
	"fmt"
	"slices"

	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/selection"
)

// UnsupportedFieldError means that a resource's cache cannot select by this value of the field
// label Field. Upstream may support it.
type UnsupportedFieldError struct{ Field string }

func (e *UnsupportedFieldError) Error() string {
	return fmt.Sprintf("the cache cannot select by this value of the field label %q", e.Field)
}

// Filter is the selection of a request: a namespace, a label selector and a field selector. A
// filter without any of them matches all objects.
type Filter struct {
	resource  *Resource
	namespace string
	within    string    // the only possible namespace, if known
	among     Decisions // nil for all namespaces
	labels    labels.Selector
	fields    []fieldRequirement
	interest  Interest
	cost      int
	reenters  bool
}

type fieldRequirement struct {
	index int // index into Resource.Fields, ByName or ByNamespace
	value string
	equal bool
}

// Indexes of the fields that are not in Resource.Fields.
const (
	ByName      = -1
	ByNamespace = -2
)

func (f *Filter) field(o *Object, index int) string {
	switch index {
	case ByName:
		return o.Name()
	case ByNamespace:
		return o.Namespace()
	}
	return o.Value(f.resource, index)
}

// NewFilter compiles a request's selection for objects of r. An empty namespace means all
// namespaces. A nil selector selects all objects. If r does not have a field, or the value is not
// exact in JSON, NewFilter returns *[UnsupportedFieldError].
func NewFilter(
	r *Resource, namespace string, ls labels.Selector, fs fields.Selector,
) (*Filter, error) {
	f := &Filter{resource: r, namespace: namespace}
	if ls != nil && !ls.Empty() {
		f.labels, f.reenters = ls, true
	}
	if fs != nil && !fs.Empty() {
		requirements := fs.Requirements()
		if len(requirements) == 0 { // fields.Nothing: no object has an empty name
			f.fields = append(f.fields, fieldRequirement{ByName, "", true})
		}
		for _, req := range requirements {
			index, ok := selectedField(r, req.Field)
			if !ok || !exact(req.Value) {
				return nil, &UnsupportedFieldError{req.Field}
			}
			equal := req.Operator != selection.NotEquals
			f.fields = append(f.fields, fieldRequirement{index, req.Value, equal})
			final := index < 0 || r.Fields[index].Final && equal && req.Value != ""
			f.reenters = f.reenters || !final
		}
		// Matches reads the value of each field only once.
		byIndex := func(a, b fieldRequirement) int { return cmp.Compare(a.index, b.index) }
		slices.SortStableFunc(f.fields, byIndex)
	}
	f.narrow()
	f.cost = f.comparisons()
	return f, nil
}

// Decisions say which namespaces are selected. They may change while a filter is in use: a decision
// may become known, or unknown again.
type Decisions interface {
	Decide(namespace string) (selected, known bool)
}

// Among returns a filter for some namespaces only. Decide knows of this limit, Matches does not.
func (f *Filter) Among(d Decisions) *Filter {
	narrowed := *f
	narrowed.among = d
	return &narrowed
}

// Decide reports whether the namespace of an object is selected.
func (f *Filter) Decide(o *Object) (selected, known bool) {
	if f.among == nil {
		return true, true
	}
	return f.among.Decide(f.Home(o))
}

// Home returns the namespace of an object. That of a Namespace is the Namespace itself.
func (f *Filter) Home(o *Object) string {
	if f.resource.Namespaced {
		return o.Namespace()
	}
	return o.Name()
}

// readCost is the cost of reading a field that is not kept in memory, in comparisons.
const readCost = 8

func (f *Filter) comparisons() (n int) {
	if f.labels != nil {
		requirements, _ := f.labels.Requirements()
		for i := range requirements {
			n += max(1, len(requirements[i].ValuesUnsorted()))
		}
	}
	for i, req := range f.fields {
		n++
		same := i > 0 && f.fields[i-1].index == req.index
		if !same && req.index >= 0 && !f.resource.Fields[req.index].Kept {
			n += readCost
		}
	}
	return n
}

// Cost returns roughly the number of strings that a match compares. A filter's memory, without the
// text of its selectors, is proportional to Cost.
func (f *Filter) Cost() int { return f.cost }

func selectedField(r *Resource, field string) (int, bool) {
	switch field {
	case "metadata.name":
		return ByName, true
	case "metadata.namespace":
		// Cluster-scoped objects have no namespace, so upstream has to return its error.
		return ByNamespace, r.Namespaced && !r.NoNamespaceField
	}
	i := slices.IndexFunc(r.Fields, func(f Field) bool { return f.Name == field })
	return i, i >= 0
}

// Interest is a filter's narrowest requirement. An event concerns the filter only if it meets this
// requirement. Every event meets the zero Interest.
type Interest struct {
	By    int    // ByName, ByNamespace, or an index into Resource.Fields
	Value string // a key, a namespace, or the field's value
}

// Interest returns the filter's narrowest requirement.
func (f *Filter) Interest() Interest { return f.interest }

// MayReenter reports whether an object can leave the selection and come back.
func (f *Filter) MayReenter() bool { return f.reenters }

func (f *Filter) narrow() {
	r, name, kept := f.resource, "", false
	f.within = f.namespace
	for _, req := range f.fields {
		switch {
		case !req.equal:
		case req.index == ByName:
			name = req.value
		case req.index == ByNamespace && f.within == "":
			f.within = req.value
		case req.index >= 0 && req.value != "" && (f.interest.Value == "" || !kept):
			f.interest = Interest{By: req.index, Value: req.value}
			kept = r.Fields[req.index].Kept
		}
	}
	if f.within != "" && !kept {
		// A namespace usually selects fewer objects than a phase, and more than a node.
		f.interest = Interest{By: ByNamespace, Value: f.within}
	}
	if name != "" && (f.within != "" || !r.Namespaced) {
		f.interest = Interest{By: ByName, Value: r.Key(f.within, name)}
	}
}

// Selective reports whether the filter has a label or field selector.
func (f *Filter) Selective() bool { return f.labels != nil || len(f.fields) > 0 }

// Single reports whether the filter can match only one object.
func (f *Filter) Single() bool { return f.interest.By == ByName }

// Matches reports whether an object is selected.
func (f *Filter) Matches(o *Object) bool {
	if f.namespace != "" && o.Namespace() != f.namespace {
		return false
	}
	if f.labels != nil && !f.labels.Matches(o.Labels()) {
		return false
	}
	value := ""
	for i, req := range f.fields {
		if i == 0 || f.fields[i-1].index != req.index {
			value = f.field(o, req.index)
		}
		if (value == req.value) != req.equal {
			return false
		}
	}
	return true
}

// Select returns a bit for each of at most 64 objects, bit 0 for the first one: set if it matches.
func (f *Filter) Select(objects []*Object) (matches uint64) {
	for i, o := range objects {
		if f.Matches(o) {
			matches |= 1 << i
		}
	}
	return matches
}

// ID identifies the selection among the selections of the resource.
func (f *Filter) ID() string {
	id := append([]byte(f.namespace), 0)
	if f.labels != nil {
		id = append(id, f.labels.String()...)
	}
	for _, req := range f.fields { // quoted, because values can contain any byte
		id = fmt.Appendf(id, "\x00%d,%t,%q", req.index, req.equal, req.value)
	}
	return string(id)
}

// KeyRange returns a range that contains the keys of all possible matches.
func (f *Filter) KeyRange(r *Resource) (from, to string) {
	if f.Single() {
		return f.interest.Value, f.interest.Value + "\x00"
	}
	return r.KeyRange(f.within)
}
