package chart

import (
	"strings"
	"testing"
)

// The notes of an unreleased chart say so, unless the user has named an image. make chart-package
// removes the chart's annotation from releases.
func TestNotesOfAnUnreleasedChart(t *testing.T) {
	const annotation = "watchproxy.dev/unreleased"
	for name, test := range map[string]struct {
		values             string
		released, mentions bool
	}{
		"unreleased":                     {`{}`, false, true},
		"unreleased with a tag":          {`{image: {tag: abc}}`, false, false},
		"unreleased with a digest":       {`{image: {digest: "sha256:` + strings.Repeat("a", 64) + `"}}`, false, false},
		"unreleased with own repository": {`{image: {repository: registry.example/watchproxy}}`, false, true},
		"released":                       {`{}`, true, false},
	} {
		c := loadChart(t)
		c.Metadata.Annotations[annotation] = "true" // until the first release, it is in the repository
		if test.released {
			delete(c.Metadata.Annotations, annotation)
		}
		r, err := template(c, parseValues(t, test.values))
		must(t, err)
		if got := strings.Contains(r.Info.Notes, "This chart is unreleased"); got != test.mentions {
			t.Errorf("%s: the notes mention it: %v\n%s", name, got, r.Info.Notes)
		}
	}
}
