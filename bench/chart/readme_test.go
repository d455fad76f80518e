package chart

import (
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/watchproxy/watchproxy/bench/cluster"
)

var update = flag.Bool("update", false, "write the table of values into the chart's README, and metrics.md")

// The README's table of values matches values.yaml, and every value in it has a description.
func TestReadmeHasAllValues(t *testing.T) {
	text, err := os.ReadFile(filepath.Join(chartDir(), "values.yaml"))
	must(t, err)
	var document yaml.Node
	must(t, yaml.Unmarshal(text, &document))
	table := "| Key | Type | Default | Description |\n|---|---|---|---|\n" + strings.Join(rows(t, "", document.Content[0]), "")

	path := filepath.Join(chartDir(), "README.md")
	readme, err := os.ReadFile(path)
	must(t, err)
	const head = "| Key |"
	before, _, _ := strings.Cut(string(readme), head)
	if want := before + table; want != string(readme) {
		if !*update {
			t.Fatalf("the table in %s is not that of values.yaml: cd bench/chart && go test -run %s -update .", path, t.Name())
		}
		must(t, os.WriteFile(path, []byte(want), 0o644))
	}
}

// The chart and the proxy accept the README's examples of values.
func TestReadmeExamples(t *testing.T) {
	t.Parallel()
	readme, err := os.ReadFile(filepath.Join(chartDir(), "README.md"))
	must(t, err)
	examples := regexp.MustCompile("(?ms)^```yaml\n(.*?)^```").FindAllStringSubmatch(string(readme), -1)
	if len(examples) == 0 {
		t.Error("the README has no examples")
	}
	for _, example := range examples {
		r, err := template(loadChart(t), parseValues(t, example[1]))
		if err != nil {
			t.Errorf("%v:\n%s", err, example[1])
			continue
		}
		if _, err := load(t, configText(t, parseObjects(t, r.Manifest))); err != nil {
			t.Errorf("the proxy refuses %v:\n%s", err, example[1])
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
	must(t, value.Decode(&decoded))
	text, err := json.Marshal(decoded)
	must(t, err)
	const most = 90
	if len(text) > most {
		return "see values.yaml"
	}
	return string(text)
}

// sizeRow matches a row of the README's table of sizes.
var sizeRow = regexp.MustCompile(`(?m)^\| [\d,]+(, with 200 writes a second)? \| (\d+) MiB \| (\d+) MiB.*? \| (\S+) \|$`)

// The README's rule for the memory gives at least what was measured, and not much more. The memory
// limits in the table are a third above it. The project's README has the same rule.
func TestSizesFollowTheRule(t *testing.T) {
	const fixed, perJSON, log, most = 60, 1.3, 1.25 * 256, 1.35
	readme, err := os.ReadFile(filepath.Join(chartDir(), "README.md"))
	must(t, err)
	found := sizeRow.FindAllStringSubmatch(string(readme), -1)
	if len(found) < 4 {
		t.Fatalf("only %d rows", len(found))
	}
	for _, row := range found {
		size, err := strconv.ParseFloat(row[2], 64)
		must(t, err)
		measured, err := strconv.ParseFloat(row[3], 64)
		must(t, err)
		sum := fixed + perJSON*size
		if row[1] != "" {
			sum += log
		}
		limit, err := resource.ParseQuantity(row[4])
		must(t, err)
		if sum < measured || sum > most*measured {
			t.Errorf("the rule gives %.0f MiB: %s", sum, row[0])
		}
		if float64(limit.Value()>>20) < sum*4/3 {
			t.Errorf("the limit is too low for %.0f MiB: %s", sum, row[0])
		}
	}
	main, err := os.ReadFile(filepath.Join(cluster.Root(), "README.md"))
	must(t, err)
	for name, text := range map[string]string{"the chart's README": string(readme), "README.md": string(main)} {
		text = strings.Join(strings.Fields(text), " ")
		if rule := fmt.Sprintf("%d MiB, plus %v times the JSON of", fixed, perJSON); !strings.Contains(text, rule) {
			t.Errorf("%s does not have the rule %q", name, rule)
		}
	}
}
