package config

import (
	"bytes"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"reflect"
	"regexp"
	"slices"
	"strings"

	"go.yaml.in/yaml/v4"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utilerrors "k8s.io/apimachinery/pkg/util/errors"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// Parse reads the text of a configuration file strictly. It does not set defaults or validate the
// result, so that flags can override fields first. It also returns the lines of the fields. Errors
// about a field are of type [field.Error] and have its path. If there are errors, the configuration
// is nil: fields that could not be read would make others look wrong. An empty text is valid.
func Parse(data []byte) (*ProxyConfiguration, Lines, error) {
	c := &ProxyConfiguration{}
	r := reader{lines: Lines{}}
	root := r.document(data)
	if root == nil { // an empty file has the right version and kind
		c.APIVersion, c.Kind = APIVersion, Kind
	} else {
		r.value(root, reflect.ValueOf(c).Elem(), nil)
	}
	if len(r.errs) > 0 {
		return nil, r.lines, utilerrors.NewAggregate(r.errs)
	}
	return c, r.lines, nil
}

// reader sets the fields of a configuration from the nodes of a YAML text. The decoders of YAML
// packages accept numbers as text and 1.5 as an integer, and their errors lack the path of the
// field. If a value does not fit, the reader records an error and continues, to report all.
type reader struct {
	errs  []error
	lines Lines
}

func (r *reader) fail(line int, err error) { r.errs = append(r.errs, &lineError{line, err}) }

// document returns the first document's object, or nil if empty. Only empty documents may follow.
func (r *reader) document(data []byte) (root *yaml.Node) {
	decoder := yaml.NewDecoder(bytes.NewReader(data))
	for n := 1; ; n++ {
		var document yaml.Node
		err := decoder.Decode(&document)
		if errors.Is(err, io.EOF) {
			return root
		}
		if err != nil { // the documents before the error are unused, too
			r.errs = append(r.errs, syntaxError(data, err))
			return nil
		}
		content := document.Content[0]
		switch {
		case content.ShortTag() == null:
		case n > 1:
			r.fail(content.Line, fmt.Errorf("document %d of the file: "+
				"a configuration is the first and only one, remove others", n))
		case content.Kind != yaml.MappingNode:
			r.fail(content.Line, errors.New("must be an object with the fields apiVersion "+
				"and kind, but is "+kinds[content.Kind]))
		default:
			root = content
		}
	}
}

const (
	null      = "!!null"
	timestamp = "!!timestamp"
)

// value sets a field or an element of a list. A null means that the value is missing.
func (r *reader) value(node *yaml.Node, to reflect.Value, path *field.Path) {
	line := node.Line
	node = aliased(node)
	if node.ShortTag() == null {
		return
	}
	if to.Kind() == reflect.Pointer {
		to.Set(reflect.New(to.Type().Elem()))
		to = to.Elem()
	}
	switch {
	case isObject(to.Type()) && node.Kind == yaml.MappingNode:
		r.object(node, to, path)
	case to.Kind() == reflect.Slice && node.Kind == yaml.SequenceNode:
		to.Set(reflect.MakeSlice(to.Type(), len(node.Content), len(node.Content)))
		for i, element := range node.Content {
			at := path.Index(i)
			r.lines[at.String()] = element.Line
			r.value(element, to.Index(i), at)
		}
	case node.Kind != yaml.ScalarNode:
		r.fail(line, field.TypeInvalid(path, field.OmitValueType{},
			"must be "+form(to.Type())+", but is "+kinds[node.Kind]))
	case setScalar(node, to) != nil:
		r.fail(line, field.Invalid(path, node.Value, "must be "+form(to.Type())))
	}
}

func (r *reader) object(node *yaml.Node, to reflect.Value, path *field.Path) {
	known := map[string]reflect.Value{}
	for f, value := range to.Fields() {
		known[nameOf(f)] = value
	}
	given := map[string]int{} // lines
	for pair := range slices.Chunk(node.Content, 2) {
		key := aliased(pair[0])
		at := path.Child(key.Value)
		value, ok := known[key.Value]
		switch before, again := given[key.Value]; {
		case !ok:
			r.fail(key.Line, field.Forbidden(at, unknown(at, known)))
		case again:
			twice := fmt.Sprintf("is given twice, in lines %d and %d", before, key.Line)
			r.fail(key.Line, field.Forbidden(at, twice))
		default:
			given[key.Value] = key.Line
			r.lines[at.String()] = key.Line
			r.value(pair[1], value, at)
		}
	}
}

func aliased(node *yaml.Node) *yaml.Node {
	if node.Kind == yaml.AliasNode {
		return node.Alias
	}
	return node
}

// index matches the number of a list's element in a path.
var index = regexp.MustCompile(`\[\d+\]`)

func unknown(path *field.Path, known map[string]reflect.Value) string {
	if reason, gone := removed[index.ReplaceAllString(path.String(), "")]; gone {
		return "is gone: " + reason + "; remove it"
	}
	return "unknown field (there are " + strings.Join(slices.Sorted(maps.Keys(known)), ", ") + ")"
}

func nameOf(f reflect.StructField) string {
	name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
	return name
}

func isObject(of reflect.Type) bool {
	return of.Kind() == reflect.Struct && of != reflect.TypeFor[metav1.Duration]() &&
		of != reflect.TypeFor[resource.Quantity]()
}

// setScalar sets a single value. It converts the value to JSON first, because durations and
// quantities can decode themselves from JSON, and because JSON's decoder converts no types.
func setScalar(node *yaml.Node, to reflect.Value) error {
	var value any = node.Value
	if node.ShortTag() != timestamp { // keep text that looks like a date
		if err := node.Decode(&value); err != nil {
			return err
		}
	}
	text, err := json.Marshal(value)
	if err != nil { // not a number
		return err
	}
	return json.Unmarshal(text, to.Addr().Interface())
}

func form(of reflect.Type) string {
	switch of {
	case reflect.TypeFor[metav1.Duration]():
		return "a duration with its unit, such as 30s or 1m30s"
	case reflect.TypeFor[resource.Quantity]():
		return "a size in bytes, such as 64Mi"
	}
	return forms[of.Kind()]
}

var (
	forms = map[reflect.Kind]string{
		reflect.String:  "text, in quotes if it looks like something else",
		reflect.Bool:    "true or false",
		reflect.Int:     "an integer",
		reflect.Float64: "a number",
		reflect.Slice:   "a list",
		reflect.Struct:  "an object",
	}
	kinds = map[yaml.Kind]string{
		yaml.ScalarNode:   "a single value",
		yaml.SequenceNode: "a list",
		yaml.MappingNode:  "an object",
	}
)

//go:embed schema.json
var schema []byte

// Schema returns the JSON schema (draft 2020-12) of a configuration file. It does not contain
// constraints between several fields; Validate checks these.
func Schema() []byte { return schema }
