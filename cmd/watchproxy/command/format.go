package command

import (
	"encoding/json"
	"errors"
	"io"

	"github.com/spf13/pflag"
)

// JSON is the flag -o json: whether a command prints JSON instead of text.
type JSON bool

// AddFlag adds the flag.
func (j *JSON) AddFlag(flags *pflag.FlagSet) {
	flags.VarP(j, "output", "o", "`FORMAT`: json (default: text)")
}

// Set implements pflag.Value.
func (j *JSON) Set(text string) error {
	if text != "json" {
		return errors.New("must be json, or not given")
	}
	*j = true
	return nil
}

// String implements pflag.Value.
func (j *JSON) String() string {
	if *j {
		return "json"
	}
	return ""
}

// Type implements pflag.Value.
func (j *JSON) Type() string { return "FORMAT" }

// PrintJSON writes a value as JSON for people.
func PrintJSON(w io.Writer, value any) error {
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	return e.Encode(value)
}
