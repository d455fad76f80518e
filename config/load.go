package config

import (
	"fmt"
	"os"
	"strings"

	utilerrors "k8s.io/apimachinery/pkg/util/errors"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/watchproxy/watchproxy/config/strict"
)

// Load reads a configuration file strictly. It does not set defaults or validate the result, so
// that flags can override fields first. If it finds errors in the file, it also validates the other
// fields, so that its error covers the whole file. Errors about a field are of type [field.Error]
// and have its path. An empty file is valid.
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

// Parse reads the text of a configuration file like [Load]. It also returns the lines of its
// fields. If there are errors about fields, the configuration contains the other fields and the
// defaults. If the text is not a YAML object, the configuration is nil.
func Parse(data []byte) (*ProxyConfiguration, *strict.Lines, error) {
	c := &ProxyConfiguration{}
	d := strict.Decode(data, c)
	errs := d.Text
	switch {
	case d.Unreadable:
		return nil, d.Lines, utilerrors.NewAggregate(errs)
	case d.Empty: // an empty file has the right version and kind
		c.APIVersion, c.Kind = APIVersion, Kind
	}
	for _, err := range d.Fields {
		errs = append(errs, err)
	}
	if len(errs) == 0 {
		return c, d.Lines, nil
	}
	if explains(d.Fields, "listen") {
		c.Listen = "127.0.0.1:0" // differs from every adminListen
	}
	c.SetDefaults()
	for _, err := range c.validate() {
		if !explains(d.Fields, err.Field) {
			errs = append(errs, err)
		}
	}
	return c, d.Lines, utilerrors.NewAggregate(errs)
}

// explains reports whether a validation error at path is only a consequence of other errors.
// Either the field could not be read, or validation compares it with a field that could not be read
// and has its default instead.
func explains(errs field.ErrorList, path string) bool {
	for _, err := range errs {
		if err.Type == field.ErrorTypeForbidden { // unknown and repeated fields were skipped
			continue
		}
		for _, at := range append([]string{err.Field}, follows[err.Field]...) {
			rest, below := strings.CutPrefix(path, at)
			if below && (rest == "" || rest[0] == '.' || rest[0] == '[') {
				return true
			}
		}
	}
	return false
}

// follows contains, for each field, the fields whose validation depends on it.
var follows = map[string][]string{
	"listen":              {"tls", "authentication.mode", "authentication.anonymous", "authentication.x509"},
	"authentication":      {"tls"},
	"authentication.mode": {"tls", "authentication.anonymous", "authentication.x509"},
}
