package config

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"os"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

var update = flag.Bool("update", false, "rewrite schema.json and README.md")

// The schema and the reference are generated from the types: go test ./config -update.
func TestSchemaAndReferenceAreOfTheTypes(t *testing.T) {
	g := newGenerator(t)
	schema := g.object(reflect.TypeFor[ProxyConfiguration](), fieldsOf(t, Default()))
	schema["$schema"] = "https://json-schema.org/draft/2020-12/schema"
	schema["title"] = Kind
	schema["required"] = []string{"apiVersion", "kind"}
	properties := schema["properties"].(map[string]any)
	for name, only := range map[string]string{"apiVersion": APIVersion, "kind": Kind} {
		properties[name].(map[string]any)["const"] = only
	}
	var text bytes.Buffer
	encoder := json.NewEncoder(&text)
	encoder.SetEscapeHTML(false)
	encoder.SetIndent("", "  ")
	if err := encoder.Encode(schema); err != nil {
		t.Fatal(err)
	}
	var reference strings.Builder
	reference.WriteString("# ProxyConfiguration\n\nThe configuration file of `watchproxy serve --config FILE`, in YAML or JSON. Every field except\n" +
		"`apiVersion` and `kind` is optional. `watchproxy config validate FILE` reports the errors in a file,\n" +
		"with their lines. An empty file is valid.\n" +
		"`watchproxy config defaults` prints the configuration of an empty file. `watchproxy config schema`\n" +
		"prints this list as a JSON schema for editors ([schema.json](schema.json)). Both are generated from\n" +
		"the Go types. Durations are written like `1m30s`, sizes like `64Mi`.\n\n| Field | Default | |\n|---|---|---|\n")
	writeReference(&reference, "", schema)
	for name, content := range map[string]string{"schema.json": text.String(), "README.md": reference.String()} {
		if *update {
			if err := os.WriteFile(name, []byte(content), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		if written, err := os.ReadFile(name); err != nil || string(written) != content {
			t.Errorf("%s differs from the types (%v): go test ./config -update", name, err)
		}
	}
	if string(Schema()) != text.String() && !*update {
		t.Error("Schema() differs from schema.json")
	}
}

// fieldsOf returns the fields of a configuration by their names in the file.
func fieldsOf(t *testing.T, c *ProxyConfiguration) (all map[string]any) {
	t.Helper()
	text, err := json.Marshal(c)
	if err == nil {
		err = json.Unmarshal(text, &all)
	}
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// generator makes schemas from types. The comments of fields are the descriptions.
type generator struct {
	t        *testing.T
	comments map[string]string   // of fields, by Type.Field
	values   map[string][]string // of string types with constants
}

func newGenerator(t *testing.T) *generator {
	t.Helper()
	g := &generator{t, map[string]string{}, map[string][]string{}}
	for _, file := range []string{"types.go", "access.go", "limits.go", "audit.go", "views.go"} {
		parsed, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.ParseComments)
		if err != nil {
			t.Fatal(err)
		}
		ast.Inspect(parsed, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.TypeSpec:
				if s, ok := n.Type.(*ast.StructType); ok {
					for _, f := range s.Fields.List {
						g.comments[n.Name.Name+"."+f.Names[0].Name] = strings.Join(strings.Fields(f.Doc.Text()), " ")
					}
				}
			case *ast.ValueSpec:
				if of, ok := n.Type.(*ast.Ident); ok {
					g.values[of.Name] = append(g.values[of.Name], strings.Trim(n.Values[0].(*ast.BasicLit).Value, `"`))
				}
			}
			return true
		})
	}
	return g
}

// patterns are the checks of Validate for texts, by Type.Field. A list's patterns are those of its
// elements.
var patterns = map[string]map[string]any{
	"Cache.Exclude":  {"pattern": resourcePattern, "not": map[string]any{"pattern": versionedPattern}},
	"Resource.Name":  {"pattern": resourcePattern, "not": map[string]any{"pattern": versionedPattern}},
	"View.Name":      {"pattern": "^[a-z0-9]([-a-z0-9]*[a-z0-9])?$", "maxLength": 63},
	"View.Resources": {"pattern": resourcePattern, "not": map[string]any{"pattern": versionedPattern}},
}

// bounds adds the bounds in a field's tags: of numbers, and of sizes that are written as numbers.
// A size that may also be 0, and a duration, have none in the schema.
func bounds(to map[string]any, tag reflect.StructTag) error {
	if tag.Get("zero") == "ok" {
		return nil
	}
	for name, bound := range map[string]string{"minimum": tag.Get("min"), "maximum": tag.Get("max")} {
		if bound == "" || strings.HasSuffix(bound, "s") {
			continue
		}
		q, err := resource.ParseQuantity(bound)
		if err != nil {
			return err
		}
		to[name] = q.AsApproximateFloat64()
	}
	return nil
}

// object returns the schema of a struct.
func (g *generator) object(of reflect.Type, defaults map[string]any) map[string]any {
	g.t.Helper()
	properties := map[string]any{}
	for f := range of.Fields() {
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		s := g.schema(f.Type, defaults[name])
		if enum, ok := s["enum"].([]string); ok && strings.Join(enum, " ") != f.Tag.Get("oneof") {
			g.t.Errorf("%s.%s: the tag differs from the constants %q", of.Name(), f.Name, enum)
		}
		if _, ok := f.Tag.Lookup("default"); ok && s["default"] == nil { // of an optional object or a list's element
			value := reflect.New(f.Type).Elem()
			setting{tag: f.Tag, value: value}.setDefault()
			s["default"] = value.Interface()
		}
		constrained := s
		if items, ok := s["items"].(map[string]any); ok {
			constrained = items
		}
		maps.Copy(constrained, patterns[of.Name()+"."+f.Name])
		if err := bounds(constrained, f.Tag); err != nil {
			g.t.Errorf("%s.%s: %v", of.Name(), f.Name, err)
		}
		s["description"] = g.comments[of.Name()+"."+f.Name]
		if s["description"] == "" || name == "" {
			g.t.Errorf("%s.%s has no comment or no name", of.Name(), f.Name)
		}
		properties[name] = s
	}
	return map[string]any{"type": "object", "properties": properties, "additionalProperties": false}
}

func (g *generator) schema(of reflect.Type, defaults any) map[string]any {
	g.t.Helper()
	if of.Kind() == reflect.Pointer {
		of = of.Elem()
	}
	s := map[string]any{}
	switch {
	case of == reflect.TypeFor[metav1.Duration]():
		s = map[string]any{"type": "string", "pattern": `^-?([0-9]+(\.[0-9]+)?(ns|us|µs|ms|s|m|h))+$|^0$`}
	case of == reflect.TypeFor[resource.Quantity]():
		s = map[string]any{"type": []string{"string", "number"}, "pattern": `^[0-9]+(\.[0-9]+)?([KMGTPE]i|[kMGTPE]|[eE][0-9]+)?$`}
	case of.Kind() == reflect.Struct:
		within, _ := defaults.(map[string]any)
		return g.object(of, within)
	case of.Kind() == reflect.Slice:
		s = map[string]any{"type": "array", "items": g.schema(of.Elem(), nil)}
	case of.Kind() == reflect.String:
		s["type"] = "string"
		if values := g.values[of.Name()]; len(values) > 0 {
			s["enum"] = values
		}
	case of.Kind() == reflect.Bool:
		s["type"] = "boolean"
	case of.Kind() == reflect.Int, of.Kind() == reflect.Int32:
		s["type"] = "integer"
	case of.Kind() == reflect.Float64:
		s["type"] = "number"
	default:
		g.t.Fatalf("no schema of %s", of)
	}
	if defaults != nil {
		s["default"] = defaults
	}
	return s
}

// The schema and Validate have the same limits.
func TestSchemaBounds(t *testing.T) {
	var schema map[string]any
	if err := json.Unmarshal(Schema(), &schema); err != nil {
		t.Fatal(err)
	}
	tried := 0
	var try func(path string, of map[string]any)
	try = func(path string, of map[string]any) {
		properties, _ := of["properties"].(map[string]any)
		for name, of := range properties {
			try(strings.TrimPrefix(path+"."+name, "."), of.(map[string]any))
		}
		for bound, beyond := range map[string]float64{"minimum": -1, "maximum": 1} {
			value, ok := of[bound].(float64)
			if !ok {
				continue
			}
			tried++
			names := strings.Split(path, ".")
			set := func(v float64) error {
				text := strconv.FormatFloat(v, 'f', -1, 64)
				for _, name := range slices.Backward(names) {
					text = "{" + name + ": " + text + "}"
				}
				_, err := load(t, head+strings.Trim(text, "{}")+strings.Repeat("}", len(names)-1)+"\n")
				return err
			}
			if err := set(value); err != nil && strings.Contains(err.Error(), path+": ") {
				t.Errorf("%s: the %s of %v: %v", path, bound, value, err)
			}
			if err := set(value + beyond); err == nil || !strings.Contains(err.Error(), path+": ") {
				t.Errorf("%s: beyond the %s of %v: %v", path, bound, value, err)
			}
		}
	}
	try("", schema)
	if tried < 11 {
		t.Errorf("only %d bounds were tried", tried)
	}
}

func writeReference(to *strings.Builder, path string, object map[string]any) {
	properties := object["properties"].(map[string]any)
	for _, name := range slices.Sorted(maps.Keys(properties)) {
		of := properties[name].(map[string]any)
		value := ""
		if d, ok := of["default"]; ok {
			text, _ := json.Marshal(d) // cannot fail: the value was read from JSON
			value = "`" + string(text) + "`"
		}
		fmt.Fprintf(to, "| `%s` | %s | %s |\n", path+name, value, of["description"])
		if items, ok := of["items"].(map[string]any); ok && items["properties"] != nil {
			writeReference(to, path+name+"[].", items)
		}
		if of["properties"] != nil {
			writeReference(to, path+name+".", of)
		}
	}
}
