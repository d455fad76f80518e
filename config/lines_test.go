package config

import (
	"errors"
	"strings"
	"testing"

	utilerrors "k8s.io/apimachinery/pkg/util/errors"
)

// A syntax error has the number of the first unreadable line.
func TestLinesOfSyntax(t *testing.T) {
	many, hundreds := strings.Repeat("# x\n", 20), strings.Repeat("x: y\n", 500)
	for text, want := range map[string]int{
		head + "cache:\n  log:\n    maxAge: 5m\n   exclude: [a]\ndrain: 1s\n": 6,
		head + "cache:\n  exclude: [a\ndrain: 1s\nlogLevel: info\n":           4,
		head + "  drain: 1s\nlogLevel: info\n":                                3,
		head + "drain 1s\nlogLevel: info\n":                                   3,
		head + "drain: 1s\n\tlogLevel: info\n":                                4,
		head + "listen: \"a\ndrain: 1s\n":                                     3,
		head + "listen: \"a\n" + hundreds:                                     3,
		head + "drain: {\n":                                                   3,
		head + many + "drain: *x\n" + many:                                    23,
		head + many + "listen: \x01\n" + many:                                 23,
		head + many + "listen: \xff\n" + many:                                 23,
		head + many + "listen: @a\n" + many:                                   23,
		head + "cache: {exclude: [a,\n b,\n c]}\n" + many + " x: y\n":         26,
		"drain: }\n":     1,
		"\n\n- listen\n": 3,
		head + "upstream: {contexts: [a, b]\n" + many + "drain: 1s\n": 3,
		head + "---\n" + many + "drain: [\n":                          24,
	} {
		_, lines, err := Parse([]byte(text))
		var all utilerrors.Aggregate
		if !errors.As(err, &all) {
			t.Errorf("%q: %v", text, err)
			continue
		}
		got := all.Errors()[len(all.Errors())-1]
		if line := lines.Of(got); line != want {
			t.Errorf("%q: line %d, want %d: %v", text, line, want, got)
		}
	}
}
