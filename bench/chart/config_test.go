package chart

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/watchproxy/watchproxy/config"
)

// The values of config have the fields of ProxyConfiguration, and no others. A new field is written
// with -update, without the checks that only Helm makes.
func TestConfigHasTheFieldsOfTheConfiguration(t *testing.T) {
	var proxys map[string]any
	must(t, json.Unmarshal(config.Schema(), &proxys))
	file := filepath.Join(chartDir(), "values.schema.json")
	charts := readYAML[map[string]any](t, file)
	in := charts["properties"].(map[string]any)["config"].(map[string]any)
	for _, name := range []string{"apiVersion", "kind"} { // the chart writes them
		delete(proxys["properties"].(map[string]any), name)
	}
	if *update {
		writeFields(in, proxys)
		var text bytes.Buffer
		encoder := json.NewEncoder(&text)
		encoder.SetEscapeHTML(false)
		encoder.SetIndent("", "  ")
		must(t, encoder.Encode(charts))
		must(t, os.WriteFile(file, text.Bytes(), 0o644))
	}
	sameFields(t, "config", in, proxys)
}

// writeFields gives an object of the chart's schema the fields of the proxy's.
func writeFields(chart, proxy map[string]any) {
	if of, ok := proxy["items"].(map[string]any); ok {
		in, _ := chart["items"].(map[string]any)
		writeFields(in, of)
	}
	of, _ := proxy["properties"].(map[string]any)
	in, _ := chart["properties"].(map[string]any)
	maps.DeleteFunc(in, func(name string, _ any) bool { return of[name] == nil })
	for name, field := range of {
		field := field.(map[string]any)
		delete(field, "description")
		delete(field, "default")
		if known, ok := in[name].(map[string]any); ok {
			writeFields(known, field)
		} else {
			in[name] = field
		}
	}
}

func sameFields(t *testing.T, path string, chart, proxy map[string]any) {
	t.Helper()
	if of, ok := proxy["items"].(map[string]any); ok {
		in, _ := chart["items"].(map[string]any)
		sameFields(t, path+"[]", in, of)
		return
	}
	of, ok := proxy["properties"].(map[string]any)
	if !ok {
		return
	}
	in, _ := chart["properties"].(map[string]any)
	got, want := slices.Sorted(maps.Keys(in)), slices.Sorted(maps.Keys(of))
	if !slices.Equal(got, want) || chart["additionalProperties"] != false {
		t.Errorf("%s: values.schema.json has %v, the proxy %v; others: %v: "+
			"cd bench/chart && go test -run %s -update .", path, got, want, chart["additionalProperties"], t.Name())
		return
	}
	for name := range of {
		sameFields(t, path+"."+name, in[name].(map[string]any), of[name].(map[string]any))
	}
}

// Helm refuses the same durations, sizes, numbers and words in config as the proxy.
func TestConfigHasTheBoundsOfTheConfiguration(t *testing.T) {
	t.Parallel()
	var schema map[string]any
	must(t, json.Unmarshal(config.Schema(), &schema))
	tried := 0
	sameBounds(t, "", schema, &tried)
	if tried < 100 {
		t.Errorf("only %d values were tried", tried)
	}
}

func sameBounds(t *testing.T, path string, schema map[string]any, tried *int) {
	t.Helper()
	of, _ := schema["properties"].(map[string]any)
	for name, s := range of {
		sameBounds(t, strings.TrimPrefix(path+"."+name, "."), s.(map[string]any), tried)
	}
	for _, value := range candidates(schema) {
		*tried++
		c := nested(path, value)
		values := parseValues(t, `{tls: {mode: certManager}, resources: {limits: {memory: null}}}`)
		values["config"] = c
		_, helm := template(t, newTemplate(), values)
		c["apiVersion"], c["kind"] = config.APIVersion, config.Kind
		text, err := json.Marshal(c)
		must(t, err)
		if _, proxy := load(string(text)); (helm == nil) != (proxy == nil) {
			t.Errorf("%s: %v: helm says %v, and the proxy %v", path, value, helm, proxy)
		}
	}
}

// candidates returns values near the bounds of a field.
func candidates(schema map[string]any) (all []any) {
	switch pattern := fmt.Sprint(schema["pattern"]); {
	case strings.Contains(pattern, "µs"):
		return []any{"0", "10ms", "999ms", "1s", "1500ms", "0.5m", "1h0m0s", "999999h", "9999999h"}
	case strings.Contains(pattern, "Ki") || reflect.DeepEqual(schema["type"], []any{"string", "number"}):
		return []any{0, "1m", "1023", "1Ki", 4095, "4Ki", "1Mi", 1<<20 + 1, "67108863", "64Mi", "0.5Gi", "1Gi", "1073741825", "8E"}
	case schema["type"] == "integer":
		return []any{-1, 0, 1, 1_000_000}
	case schema["type"] == "number":
		return []any{-0.1, 0, 0.02, 0.03, 1, 1.1}
	}
	return nil
}

// nested returns an object that has a value at a path.
func nested(path string, value any) map[string]any {
	name, rest, more := strings.Cut(path, ".")
	if more {
		value = nested(rest, value)
	}
	return map[string]any{name: value}
}
