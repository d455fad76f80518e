package config

import (
	"fmt"
	"os"

	utilerrors "k8s.io/apimachinery/pkg/util/errors"

	"github.com/watchproxy/watchproxy/config/strict"
)

// Load reads a configuration file strictly. It does not set defaults or validate the result, so
// that flags can override fields first. Its error covers the form of the whole file. Errors about a
// field are of type [field.Error] and have its path. An empty file is valid.
func Load(path string) (*ProxyConfiguration, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("read configuration: %w", err)
	}
	c, _, err := Parse(data)
	if err != nil {
		return nil, fmt.Errorf("read configuration %s: %w", path, err)
	}
	return c, nil
}

// Parse reads the text of a configuration file like [Load]. It also returns the lines of its fields
// and errors. If there are errors, the configuration is nil: fields that could not be read would
// make others look wrong.
func Parse(data []byte) (*ProxyConfiguration, *strict.Lines, error) {
	c := &ProxyConfiguration{}
	empty, lines, errs := strict.Decode(data, c)
	if len(errs) > 0 {
		return nil, lines, utilerrors.NewAggregate(errs)
	}
	if empty { // an empty file has the right version and kind
		c.APIVersion, c.Kind = APIVersion, Kind
	}
	return c, lines, nil
}
