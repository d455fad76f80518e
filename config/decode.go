package config

import (
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// decoder sets the fields of a configuration from a YAML document. The YAML package's own decoder
// knows no paths of fields. This one records each value that does not fit, with its path, skips it
// and goes on, so that all errors are reported.
type decoder struct{ errs field.ErrorList }

const (
	null      = "!!null"
	timestamp = "!!timestamp"
)

func (d *decoder) object(node *yaml.Node, c *ProxyConfiguration) {
	d.value(node, reflect.ValueOf(c).Elem(), nil)
}

// value sets a field, or an element of a list. A null counts as missing.
func (d *decoder) value(node *yaml.Node, to reflect.Value, path *field.Path) {
	if node.Kind == yaml.AliasNode {
		node = node.Alias
	}
	if node.ShortTag() == null {
		return
	}
	if to.Kind() == reflect.Pointer {
		before := len(d.errs)
		pointed := reflect.New(to.Type().Elem())
		d.value(node, pointed.Elem(), path)
		if len(d.errs) == before || node.Kind == yaml.MappingNode {
			to.Set(pointed)
		}
		return
	}
	switch {
	case isLeaf(to.Type()):
		d.leaf(node, to, path)
	case to.Kind() == reflect.Slice && node.Kind == yaml.SequenceNode:
		to.Set(reflect.MakeSlice(to.Type(), len(node.Content), len(node.Content)))
		for i, element := range node.Content {
			d.value(element, to.Index(i), path.Index(i))
		}
	case to.Kind() == reflect.Struct && node.Kind == yaml.MappingNode:
		d.fields(node, to, path)
	default:
		d.errs = append(d.errs, misfit(node, to.Type(), path))
	}
}

func (d *decoder) fields(node *yaml.Node, to reflect.Value, path *field.Path) {
	known := map[string]reflect.Value{}
	var names []string
	for f, value := range to.Fields() {
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		known[name] = value
		names = append(names, name)
	}
	slices.Sort(names)
	lines := map[string]int{}
	for i := 0; i < len(node.Content); i += 2 {
		key := node.Content[i]
		if key.Kind == yaml.AliasNode {
			key = key.Alias
		}
		at := path.Child(key.Value)
		value, ok := known[key.Value]
		switch before := lines[key.Value]; {
		case !ok:
			d.errs = append(d.errs, field.Forbidden(at, "unknown field (there are "+strings.Join(names, ", ")+")"))
			continue
		case before != 0:
			d.errs = append(d.errs, field.Forbidden(at, fmt.Sprintf("is given twice, in lines %d and %d", before, key.Line)))
			continue
		}
		lines[key.Value] = key.Line
		d.value(node.Content[i+1], value, at)
	}
}

func isLeaf(of reflect.Type) bool {
	switch of {
	case reflect.TypeFor[metav1.Duration](), reflect.TypeFor[resource.Quantity]():
		return true
	}
	return of.Kind() != reflect.Struct && of.Kind() != reflect.Slice
}

// leaf sets a single value by way of JSON, because durations and quantities can parse themselves
// from JSON.
func (d *decoder) leaf(node *yaml.Node, to reflect.Value, path *field.Path) {
	if node.Kind == yaml.ScalarNode {
		var value any = node.Value
		var err error
		if node.ShortTag() != timestamp { // keep text that looks like a date
			err = node.Decode(&value)
		}
		if text, encoded := json.Marshal(value); err == nil && encoded == nil && json.Unmarshal(text, to.Addr().Interface()) == nil {
			return
		}
	}
	d.errs = append(d.errs, misfit(node, to.Type(), path))
}

func misfit(node *yaml.Node, wanted reflect.Type, path *field.Path) *field.Error {
	detail := "must be " + form(wanted)
	if node.Kind != yaml.ScalarNode {
		return field.TypeInvalid(path, field.OmitValueType{}, detail+", but is "+kindOf(node))
	}
	return field.Invalid(path, node.Value, detail)
}

// form says how values of a type are written.
func form(of reflect.Type) string {
	switch of {
	case reflect.TypeFor[metav1.Duration]():
		return "a duration with its unit, such as 30s or 1m30s"
	case reflect.TypeFor[resource.Quantity]():
		return "a size in bytes, such as 64Mi"
	}
	switch of.Kind() {
	case reflect.String:
		return "text, in quotes if it looks like something else"
	case reflect.Bool:
		return "true or false"
	case reflect.Int:
		return "an integer"
	case reflect.Float64:
		return "a number"
	case reflect.Slice:
		return "a list"
	case reflect.Struct:
		return "an object"
	}
	panic("BUG: configuration has a field of type " + of.String())
}

func kindOf(node *yaml.Node) string {
	switch node.Kind {
	case yaml.SequenceNode:
		return "a list"
	case yaml.MappingNode:
		return "an object"
	}
	return "a single value"
}
