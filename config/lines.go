package config

import (
	"bytes"
	"errors"
	"fmt"
	"regexp"
	"strings"

	"go.yaml.in/yaml/v4"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// Lines has the lines of a configuration file's fields, by path, starting at 1.
type Lines map[string]int

// Of returns the line of an error from [Parse] or from a later validation. For a missing field,
// this is the line of the object where the field should be.
func (l Lines) Of(err error) int {
	if at, ok := errors.AsType[*lineError](err); ok {
		return at.line
	}
	path := ""
	if about, ok := errors.AsType[*field.Error](err); ok {
		path = about.Field
	}
	for ; path != ""; path = path[:max(0, strings.LastIndexAny(path, ".["))] {
		if line, ok := l[path]; ok {
			return line
		}
	}
	return 1
}

type lineError struct {
	line int
	err  error
}

func (e *lineError) Error() string { return fmt.Sprintf("line %d: %v", e.line, e.err) }

func (e *lineError) Unwrap() error { return e.err }

// Message returns the text of an error as one line, without the line number in the file.
func Message(err error) string {
	if at, ok := errors.AsType[*lineError](err); ok {
		err = at.err
	}
	return strings.ReplaceAll(err.Error(), "\n", " ")
}

// unclosed matches the contexts of errors that the YAML package finds behind the mistake, a missing
// bracket, quote or colon. The mistake is in the line where the context begins.
var unclosed = regexp.MustCompile(`flow|quoted|simple key`)

// syntaxError returns an error of the YAML package with the line of the mistake.
func syntaxError(data []byte, err error) error {
	line, message := 1, err.Error()
	if at, ok := errors.AsType[*yaml.LoadError](err); ok {
		message = at.Message
		switch {
		case unclosed.MatchString(at.ContextMsg):
			line = at.ContextMark.Line
		case at.Mark.Line > 0:
			line = at.Mark.Line
		default: // an error in the encoding of the text has a position, but no line
			line += bytes.Count(data[:min(at.Mark.Index, len(data))], []byte("\n"))
		}
	}
	last := 1 + bytes.Count(bytes.TrimRight(data, "\n"), []byte("\n"))
	return &lineError{min(line, last), errors.New("not YAML: " + message)}
}
