// Package strict decodes a YAML text into a struct, and reports all errors with their lines.
package strict

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// Lines contains the line numbers of a configuration file's fields and errors.
type Lines struct {
	fields map[string]int // by path
	errors map[*field.Error]int
}

// Of returns the line of an error from [Decode] or from a later validation, starting at 1. For
// a missing field, this is the line of the object where the field should be.
func (l *Lines) Of(err error) int {
	if text, ok := errors.AsType[*textError](err); ok {
		return text.line
	}
	var about *field.Error
	if !errors.As(err, &about) {
		return 1
	}
	if line, ok := l.errors[about]; ok {
		return line
	}
	for path := about.Field; path != ""; path = path[:max(0, strings.LastIndexAny(path, ".["))] {
		if line, ok := l.fields[path]; ok {
			return line
		}
	}
	return 1
}

// textError is an error in a file's text that is not about one field.
type textError struct {
	line int
	what string
}

// Error implements error.
func (e *textError) Error() string { return fmt.Sprintf("line %d: %s", e.line, e.what) }

// Message returns the text of an error as one line, without the line number in the file.
func Message(err error) string {
	what := err.Error()
	if text, ok := errors.AsType[*textError](err); ok {
		what = text.what
	}
	return strings.ReplaceAll(what, "\n", " ")
}

// yamlLine matches the line number in an error of the YAML parser. Often the number is missing. It
// may also be the line of the surrounding object, and is then one too low.
var yamlLine = regexp.MustCompile(`^yaml: (?:line (\d+): )?`)

// syntaxError returns an error of the YAML parser with the first unreadable line of the text.
func syntaxError(data []byte, err error) error {
	text := strings.Join(strings.Fields(err.Error()), " ")
	line, ok := unreadable(data)
	if found := yamlLine.FindStringSubmatch(text); found != nil {
		text = strings.TrimPrefix(text, found[0])
		if n, err := strconv.Atoi(found[1]); err == nil && !ok {
			line = n
		}
	}
	return &textError{line, "not YAML: " + text}
}

// unreadable returns the first line that cannot follow the lines before it in YAML. It does not
// find the line if the parser stops far behind it, for example in a long text with an open quote.
func unreadable(data []byte) (line int, ok bool) {
	const far = 300 // lines
	lines := slices.Collect(bytes.Lines(data))
	read := &byLine{rest: lines}
	isYAML(read)
	line = len(lines) - len(read.rest)
	for range far {
		if isYAML(&byLine{rest: lines[:line-1]}) {
			return line, true
		}
		line--
	}
	return 1, false
}

func isYAML(text io.Reader) bool {
	decoder := yaml.NewDecoder(text)
	for {
		if err := decoder.Decode(&yaml.Node{}); err != nil {
			return errors.Is(err, io.EOF)
		}
	}
}

// byLine is a reader that returns at most one line at a time. So it shows how far a parser has
// read.
type byLine struct {
	rest  [][]byte
	begun []byte
}

// Read implements io.Reader.
func (r *byLine) Read(p []byte) (int, error) {
	if len(r.begun) == 0 {
		if len(r.rest) == 0 {
			return 0, io.EOF
		}
		r.begun, r.rest = r.rest[0], r.rest[1:]
	}
	n := copy(p, r.begun)
	r.begun = r.begun[n:]
	return n, nil
}
