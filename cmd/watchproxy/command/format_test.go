package command

import (
	"strings"
	"testing"
)

func TestJSON(t *testing.T) {
	var out strings.Builder
	if err := PrintJSON(&out, map[string]any{"b": []int{1}, "a": "x"}); err != nil || out.String() != "{\n  \"a\": \"x\",\n  \"b\": [\n    1\n  ]\n}\n" {
		t.Errorf("%v, %q", err, &out)
	}
	var j JSON
	for _, wrong := range []string{"", "text", "yaml", "JSON"} {
		if err := j.Set(wrong); err == nil || j {
			t.Errorf("%q is accepted", wrong)
		}
	}
	if err := j.Set("json"); err != nil || !j {
		t.Errorf("json: %v", err)
	}
}
