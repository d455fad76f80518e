package command

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"

	"github.com/spf13/pflag"
	"sigs.k8s.io/yaml"
)

// Format is the format of a command's output. Text is the format for people.
type Format string

// The values of [Format].
const (
	Text Format = ""
	JSON Format = "json"
	YAML Format = "yaml"
)

// AddFlag adds the flag that sets the format.
func (f *Format) AddFlag(flags *pflag.FlagSet) {
	flags.VarP(f, "output", "o", "`FORMAT`: json or yaml (default: text)")
}

// Set implements pflag.Value.
func (f *Format) Set(text string) error {
	switch given := Format(text); given {
	case JSON, YAML:
		*f = given
		return nil
	}
	return errors.New("must be json or yaml, or not given")
}

// String implements pflag.Value.
func (f *Format) String() string { return string(*f) }

// Type implements pflag.Value.
func (f *Format) Type() string { return "FORMAT" }

// Print writes a value in the format, which must not be [Text]. several says that more values
// precede or follow. Each JSON value then has one line, and each YAML document begins with three
// dashes.
func (f *Format) Print(w io.Writer, value any, several bool) error {
	if *f == JSON {
		e := json.NewEncoder(w)
		if !several {
			e.SetIndent("", "  ")
		}
		return e.Encode(value)
	}
	text, err := yaml.Marshal(value)
	if err != nil {
		return fmt.Errorf("print as YAML: %w", err)
	}
	if several {
		text = append([]byte("---\n"), text...)
	}
	_, err = w.Write(text)
	return err
}
