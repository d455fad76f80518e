package chart

import (
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apiserver/pkg/audit/policy"
)

var update = flag.Bool("update", false, "write the table of values into the chart's README, metrics.md, and the fields of config into values.schema.json")

// The README's table of values is generated from values.yaml, where each value has a description.
func TestReadmeHasAllValues(t *testing.T) {
	var table strings.Builder
	table.WriteString("| Key | Type | Default | Description |\n|---|---|---|---|\n")
	for _, v := range documented(t) {
		fmt.Fprintf(&table, "| `%s` | %s | `%s` | %s |\n", v.path, v.kind, v.text, v.description)
	}
	writeTable(t, "README.md", table.String())
}

// The chart and the proxy take the examples in the README.
func TestReadmeExamples(t *testing.T) {
	readme, err := os.ReadFile(filepath.Join(chartDir(), "README.md"))
	must(t, err)
	examples := regexp.MustCompile("(?ms)^```yaml\n(.*?)^```").FindAllStringSubmatch(string(readme), -1)
	if len(examples) == 0 {
		t.Error("the README has no examples")
	}
	for _, example := range examples {
		all := render(t, parseValues(t, example[1]))
		c := configuration(t, all)
		if c.Audit == nil || c.Audit.PolicyFile == "" {
			continue
		}
		policies := 0
		for _, o := range all.of("ConfigMap") {
			if text, ok := as[corev1.ConfigMap](t, o).Data[filepath.Base(c.Audit.PolicyFile)]; ok {
				c.Audit.PolicyFile = filepath.Join(t.TempDir(), "policy.yaml")
				must(t, os.WriteFile(c.Audit.PolicyFile, []byte(text), 0o600))
				policies++
			}
		}
		if _, err := policy.LoadPolicyFromFile(c.Audit.PolicyFile); policies != 1 || err != nil {
			t.Errorf("%d audit policies: %v\n%s", policies, err, example[1])
		}
	}
}

// writeTable fails if a document of the chart does not end with a table, or writes it with -update.
func writeTable(t *testing.T, document, table string) {
	t.Helper()
	path := filepath.Join(chartDir(), document)
	text, err := os.ReadFile(path)
	must(t, err)
	head, _, _ := strings.Cut(table, "\n")
	before, _, _ := strings.Cut(string(text), head)
	if *update {
		must(t, os.WriteFile(path, []byte(before+table), 0o644))
	} else if before+table != string(text) {
		t.Errorf("the table in %s is out of date: cd bench/chart && go test -run %s -update .", document, t.Name())
	}
}

// value is a documented value of values.yaml.
type value struct {
	path, kind, text, description string
}

// typeNames are the names of YAML's types in the table.
var typeNames = map[string]string{"!!str": "string", "!!int": "integer", "!!bool": "boolean", "!!seq": "list", "!!map": "object", "!!null": ""}

// documented returns the values with a description. A mapping without one is split into its values.
func documented(t *testing.T) (all []value) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(chartDir(), "values.yaml"))
	must(t, err)
	var document yaml.Node
	must(t, yaml.Unmarshal(text, &document))
	var split func(path string, mapping *yaml.Node)
	split = func(path string, mapping *yaml.Node) {
		for i := 0; i < len(mapping.Content); i += 2 {
			key, of := mapping.Content[i], mapping.Content[i+1]
			name := path + key.Value
			_, comment, ok := strings.Cut("\n"+key.HeadComment, "\n# -- ") // as in helm-docs
			switch {
			case ok:
				description := strings.NewReplacer("\n# ", " ", "|", `\|`).Replace(comment)
				all = append(all, value{name, typeNames[of.ShortTag()], inline(t, of), description})
			case of.Kind == yaml.MappingNode && len(of.Content) > 0:
				split(name+".", of)
			default:
				t.Errorf("values.yaml: %s has no description", name)
			}
		}
	}
	split("", document.Content[0])
	return all
}

// inline returns a value as a line of JSON that is short enough for the table.
func inline(t *testing.T, of *yaml.Node) string {
	t.Helper()
	var decoded any
	must(t, of.Decode(&decoded))
	text, err := json.Marshal(decoded)
	must(t, err)
	const most = 90
	if len(text) > most {
		return "see values.yaml"
	}
	return string(text)
}
