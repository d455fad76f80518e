package command

import (
	"strings"
	"testing"
)

// A single value is formatted for people. Several values are formatted so that programs can
// separate them.
func TestFormat(t *testing.T) {
	value := map[string]any{"b": []int{1}, "a": "x"}
	for _, test := range []struct {
		format  Format
		several bool
		want    string
	}{
		{JSON, false, "{\n  \"a\": \"x\",\n  \"b\": [\n    1\n  ]\n}\n"},
		{JSON, true, "{\"a\":\"x\",\"b\":[1]}\n"},
		{YAML, false, "a: x\nb:\n- 1\n"},
		{YAML, true, "---\na: x\nb:\n- 1\n"},
	} {
		var out strings.Builder
		if err := test.format.Print(&out, value, test.several); err != nil || out.String() != test.want {
			t.Errorf("%+v: %v, %q", test, err, &out)
		}
	}
	f := Text
	for _, wrong := range []string{"", "text", "JSON"} {
		if err := f.Set(wrong); err == nil || f != Text {
			t.Errorf("%q is a format: %q", wrong, f)
		}
	}
}
