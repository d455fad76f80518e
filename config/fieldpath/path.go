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
	"strings"
	"unicode"
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

// Parse reads a path. An error contains the position of the first wrong character, counted in bytes
// from 1, and how to write it instead.
func Parse(text string) (Path, error) {
	name, at, err := first(text)
	if err != nil {
		return nil, fmt.Errorf("position 1: %w", err)
	}
	p := Path{{Key: name}}
	for at < len(text) {
		step, length, err := next(text[at:])
		if err != nil {
			return nil, fmt.Errorf("position %d: %w", at+1, err)
		}
		p, at = append(p, step), at+length
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
		case nameLength(s.Key) == len(s.Key) && s.Key != "" && s.Key != "*":
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

// first returns the name at the beginning of a path and its length.
func first(text string) (string, int, error) {
	switch length := nameLength(text); {
	case text == "":
		return "", 0, errors.New("must not be empty: write a path such as spec.nodeName")
	case strings.ContainsRune("${", rune(text[0])):
		return "", 0, errors.New("must not be a JSONPath: begin with the name of a field, without $, { and a dot")
	case text[0] == '.':
		return "", 0, errors.New("must not begin with a dot: begin with the name of a field")
	case length == 0 || text[0] == '*':
		return "", 0, errors.New("must begin with the name of a field, such as metadata or spec")
	default:
		return text[:length], length, nil
	}
}

// next returns the step at the beginning of the rest of a path, and the length of its text.
func next(text string) (Step, int, error) {
	switch {
	case text[0] == '[':
		return bracket(text)
	case strings.ContainsRune(`]"'`, rune(text[0])):
		return Step{}, 0, errors.New(`must not contain quotes or ] here: write keys with special characters as ["KEY"]`)
	case text[0] != '.' && nameLength(text) == 0:
		return Step{}, 0, errors.New(`must not contain spaces: write keys with spaces as ["KEY"]`)
	case text[0] != '.':
		return Step{}, 0, errors.New("needs a dot before the next name")
	case strings.HasPrefix(text, ".["):
		return Step{}, 0, errors.New("must not have a dot before [: leave out the dot")
	}
	switch name := text[1 : 1+nameLength(text[1:])]; name {
	case "":
		return Step{}, 0, errors.New("needs the name of a field after the dot")
	case "*":
		return Step{}, 0, errors.New(`must not have * as a name: write [*], without a dot, for all items of a list, or ["*"] for this key`)
	default:
		return Step{Key: name}, 1 + len(name), nil
	}
}

// bracket returns the step [*], ["KEY"] or ['KEY'], and the length of its text.
func bracket(text string) (Step, int, error) {
	if strings.HasPrefix(text, "[*]") {
		return Step{Items: true}, len("[*]"), nil
	}
	inner := text[1:]
	switch {
	case inner == "" || inner[0] == ']' || strings.ContainsRune("?@(", rune(inner[0])):
		return Step{}, 0, errors.New(`must have a key or * in brackets: use ["KEY"], or [*] for all items of a list`)
	case strings.ContainsRune("0123456789-:", rune(inner[0])):
		return Step{}, 0, errors.New("must not have a number in brackets: use [*] for all items of a list")
	case inner[0] != '"' && inner[0] != '\'':
		return Step{}, 0, errors.New(`must have quotes around a key in brackets: use ["KEY"], or [*] for all items of a list`)
	}
	quote := inner[:1]
	key, rest, closed := strings.Cut(inner[1:], quote)
	if !closed || !strings.HasPrefix(rest, "]") {
		return Step{}, 0, fmt.Errorf("must end a key with %s]: if the key contains %s, put it into the other quotes", quote, quote)
	}
	return Step{Key: key}, len(text) - len(rest) + 1, nil
}

// nameLength returns the length of the name that text begins with, or 0.
func nameLength(text string) int {
	end := strings.IndexFunc(text, func(r rune) bool { return strings.ContainsRune(`.[]"'`, r) || unicode.IsSpace(r) })
	if end < 0 {
		return len(text)
	}
	return end
}
