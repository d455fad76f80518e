package strict

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"reflect"
	"regexp"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// decoder sets the fields of a struct from a YAML document. The YAML package's own decoder does not
// record the paths of fields. If a value does not fit its field, this decoder records an error with
// the path, skips the value and continues. So all errors are reported.
type decoder struct {
	errs    field.ErrorList
	lines   *Lines
	removed map[string]string
}

// Decode sets the fields of into, a pointer to a struct, from the only document of a YAML text. removed
// has the fields of earlier versions, by their paths without indexes, and what to do without each.
// empty means that the text contains nothing but comments. After an error, the struct lacks the
// fields that could not be read. Errors about fields are of type [field.Error].
func Decode(data []byte, into any, removed map[string]string) (empty bool, lines *Lines, errs []error) {
	d := decoder{removed: removed, lines: &Lines{fields: map[string]int{}, errors: map[*field.Error]int{}}}
	root, errs := documents(data)
	if root != nil {
		d.value(root, reflect.ValueOf(into).Elem(), nil)
	}
	for _, err := range d.errs {
		errs = append(errs, err)
	}
	return root == nil, d.lines, errs
}

// documents returns the content of a file's first document, or nil if it is empty. Each further
// document is an error unless it is empty.
func documents(data []byte) (root *yaml.Node, errs []error) {
	decoder := yaml.NewDecoder(bytes.NewReader(data))
	for n := 1; ; n++ {
		var document yaml.Node
		err := decoder.Decode(&document)
		if errors.Is(err, io.EOF) {
			return root, errs
		}
		if err != nil { // the documents before the error are unused, too
			return nil, append(errs, syntaxError(data, err))
		}
		content := document.Content[0]
		switch {
		case content.ShortTag() == null:
		case n == 1 && content.Kind != yaml.MappingNode:
			return nil, append(errs, &textError{content.Line, "must be an object with the fields apiVersion and kind, but is " + kindOf(content)})
		case n == 1:
			root = content
		default:
			errs = append(errs, &textError{content.Line, fmt.Sprintf("document %d of the file: a configuration is the first and only one, remove others", n)})
		}
	}
}

// fail records an error in a line.
func (d *decoder) fail(line int, err *field.Error) {
	d.errs = append(d.errs, err)
	d.lines.errors[err] = line
}

const (
	null      = "!!null"
	timestamp = "!!timestamp"
)

// value sets a field or an element of a list. A null means that the value is missing.
func (d *decoder) value(node *yaml.Node, to reflect.Value, path *field.Path) {
	line := node.Line
	if node.Kind == yaml.AliasNode {
		node = node.Alias
	}
	if node.ShortTag() == null {
		return
	}
	if to.Kind() == reflect.Pointer {
		to.Set(reflect.New(to.Type().Elem()))
		to = to.Elem()
	}
	switch {
	case isLeaf(to.Type()):
		d.leaf(line, node, to, path)
	case to.Kind() == reflect.Slice && node.Kind == yaml.SequenceNode:
		to.Set(reflect.MakeSlice(to.Type(), len(node.Content), len(node.Content)))
		for i, element := range node.Content {
			d.lines.fields[path.Index(i).String()] = element.Line
			d.value(element, to.Index(i), path.Index(i))
		}
	case to.Kind() == reflect.Struct && node.Kind == yaml.MappingNode:
		d.fields(node, to, path)
	default:
		d.fail(line, misfit(node, to.Type(), path))
	}
}

// index matches the number of a list's element in a path.
var index = regexp.MustCompile(`\[\d+\]`)

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
			reason, gone := d.removed[index.ReplaceAllString(at.String(), "")]
			if !gone {
				reason = "unknown field (there are " + strings.Join(names, ", ") + ")"
			}
			d.fail(key.Line, field.Forbidden(at, reason))
			continue
		case before != 0:
			d.fail(key.Line, field.Forbidden(at, fmt.Sprintf("is given twice, in lines %d and %d", before, key.Line)))
			continue
		}
		lines[key.Value] = key.Line
		d.lines.fields[at.String()] = key.Line
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

// leaf sets a single value. It converts the value to JSON first, because durations and quantities
// can decode themselves from JSON.
func (d *decoder) leaf(line int, node *yaml.Node, to reflect.Value, path *field.Path) {
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
	d.fail(line, misfit(node, to.Type(), path))
}

func misfit(node *yaml.Node, wanted reflect.Type, path *field.Path) *field.Error {
	detail := "must be " + form(wanted)
	if node.Kind != yaml.ScalarNode {
		return field.TypeInvalid(path, field.OmitValueType{}, detail+", but is "+kindOf(node))
	}
	return field.Invalid(path, node.Value, detail)
}

// form describes the notation of a type's values.
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
	case reflect.Int32:
		return "an integer below 2^31"
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
