// Package fieldpath parses the paths of fields in Kubernetes objects, such as spec.nodeName,
// metadata.labels["app.kubernetes.io/name"] or status.conditions[*].type.
//
// A path begins with a name. Further steps are .NAME, ["KEY"], ['KEY'] or [*]. A name contains
// neither dots, brackets, quotes nor spaces. A key contains any text except its own quote. [*]
// selects all items of a list; there is no way to select a single item.
package fieldpath

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
)

// Step leads from a value to a member or to the items of the value.
type Step struct {
	// Key is the key of a member of an object. It is empty if Items is set.
	Key string
	// Items selects all items of a list, written [*].
	Items bool
}

// Path is the way from an object to a field. It has at least one step, and the first one is a
// member of the object.
type Path []Step

const (
	// special are the characters that a name does not contain: dots, brackets, quotes and spaces.
	special = `.\[\]"'\s\v\x{85}\p{Z}`
	char    = `[^` + special + `]`
)

var (
	first = regexp.MustCompile(`^[^*${` + special + `]`)
	next  = regexp.MustCompile(`^(?:\.(` + char + `+)|\["([^"]*)"\]|\['([^']*)'\]|\[\*\])`)
	name  = regexp.MustCompile(`^` + char + `+$`)
)

// Parse reads a path. An error contains the position of the first wrong character, counted in bytes
// from 1, and how to write it instead.
func Parse(text string) (p Path, err error) {
	if !first.MatchString(text) {
		return nil, fmt.Errorf("position 1: %w", explain(text, beginnings))
	}
	for rest := "." + text; rest != ""; {
		step := next.FindStringSubmatch(rest)
		if step == nil || step[1] == "*" {
			return nil, fmt.Errorf("position %d: %w", len(text)-len(rest)+1, explain(rest, mistakes))
		}
		p, rest = append(p, Step{Key: step[1] + step[2] + step[3], Items: step[0] == "[*]"}), rest[len(step[0]):]
	}
	return p, nil
}

// String returns the path as Parse reads it. If there are several ways to write a step, it returns
// the shortest.
func (p Path) String() string {
	var b strings.Builder
	for i, s := range p {
		switch {
		case s.Items:
			b.WriteString("[*]")
		case name.MatchString(s.Key) && s.Key != "*":
			if i > 0 {
				b.WriteByte('.')
			}
			b.WriteString(s.Key)
		case strings.Contains(s.Key, `"`):
			b.WriteString("['" + s.Key + "']")
		default:
			b.WriteString(`["` + s.Key + `"]`)
		}
	}
	return b.String()
}

// mistake is an error for texts that begin with a regular expression.
type mistake struct{ begin, says string }

// beginnings are the mistakes at the beginning of a path, and mistakes those at another step. If
// several match, the first one counts. The last ones match any text.
var (
	beginnings = []mistake{
		{`$`, "must not be empty: write a path such as spec.nodeName"},
		{`[${]`, "must not be a JSONPath: begin with the name of a field, without $, { and a dot"},
		{`\.`, "must not begin with a dot: begin with the name of a field"},
		{``, "must begin with the name of a field, such as metadata or spec"},
	}
	mistakes = []mistake{
		{`\[($|[]?@(])`, `must have a key or * in brackets: use ["KEY"], or [*] for all items of a list`},
		{`\[[0-9:-]`, "must not have a number in brackets: use [*] for all items of a list"},
		{`\[[^"']`, `must have quotes around a key in brackets: use ["KEY"], or [*] for all items of a list`},
		{`\["`, `must end a key with "]: if the key contains ", put it into the other quotes`},
		{`\['`, `must end a key with ']: if the key contains ', put it into the other quotes`},
		{`[]"']`, `must not contain quotes or ] here: write keys with special characters as ["KEY"]`},
		{char, "needs a dot before the next name"},
		{`[^.]`, `must not contain spaces: write keys with spaces as ["KEY"]`},
		{`\.\[`, "must not have a dot before [: leave out the dot"},
		{`\.\*`, `must not have * as a name: write [*], without a dot, for all items of a list, or ["*"] for this key`},
		{``, "needs the name of a field after the dot"},
	}
)

func explain(text string, among []mistake) error {
	i := slices.IndexFunc(among, func(m mistake) bool {
		return regexp.MustCompile(`^(?:` + m.begin + `)`).MatchString(text)
	})
	return errors.New(among[i].says)
}
