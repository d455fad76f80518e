package chart

import (
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"
)

var update = flag.Bool("update", false, "write the table of values into the chart's README")

// The README's table of values matches values.yaml, and every value in it has a description.
func TestReadmeHasAllValues(t *testing.T) {
	text, err := os.ReadFile(filepath.Join(chartDir(), "values.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	var document yaml.Node
	if err := yaml.Unmarshal(text, &document); err != nil {
		t.Fatal(err)
	}
	table := "| Key | Type | Default | Description |\n|---|---|---|---|\n" + strings.Join(rows(t, "", document.Content[0]), "")

	path := filepath.Join(chartDir(), "README.md")
	readme, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	const head = "| Key |"
	before, _, _ := strings.Cut(string(readme), head)
	if want := before + table; want != string(readme) {
		if !*update {
			t.Fatalf("the table in %s is not that of values.yaml: cd bench/chart && go test -run %s -update .", path, t.Name())
		}
		if err := os.WriteFile(path, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

// description is how the comment above a documented value begins, as in helm-docs. A mapping
// without a description is split into its values.
const description = "# -- "

// typeNames are the names of YAML's types in the table.
var typeNames = map[string]string{"!!str": "string", "!!int": "integer", "!!bool": "boolean", "!!seq": "list", "!!map": "object"}

// rows returns the table's rows for a mapping.
func rows(t *testing.T, path string, mapping *yaml.Node) (all []string) {
	t.Helper()
	for i := 0; i < len(mapping.Content); i += 2 {
		key, value := mapping.Content[i], mapping.Content[i+1]
		name := path + key.Value
		_, text, ok := strings.Cut("\n"+key.HeadComment, "\n"+description)
		switch {
		case ok:
			all = append(all, fmt.Sprintf("| `%s` | %s | `%s` | %s |\n", name, typeNames[value.ShortTag()], inline(t, value), strings.ReplaceAll(strings.ReplaceAll(text, "\n# ", " "), "|", `\|`)))
		case value.Kind == yaml.MappingNode && len(value.Content) > 0:
			all = append(all, rows(t, name+".", value)...)
		default:
			t.Errorf("values.yaml: %s has no description", name)
		}
	}
	return all
}

// inline returns a value as a line of JSON that is short enough for the table.
func inline(t *testing.T, value *yaml.Node) string {
	t.Helper()
	var decoded any
	if err := value.Decode(&decoded); err != nil {
		t.Fatal(err)
	}
	text, err := json.Marshal(decoded)
	if err != nil {
		t.Fatal(err)
	}
	const most = 90
	if len(text) > most {
		return "see values.yaml"
	}
	return string(text)
}
