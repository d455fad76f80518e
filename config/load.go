package config

import (
	utilerrors "k8s.io/apimachinery/pkg/util/errors"

	"github.com/watchproxy/watchproxy/config/strict"
)

// Parse reads the text of a configuration file strictly. It does not set defaults or validate the
// result, so that flags can override fields first. It also returns the lines of the fields and
// errors. Errors about a field are of type [field.Error] and have its path. If there are errors, the
// configuration is nil: fields that could not be read would make others look wrong. An empty text is
// valid.
func Parse(data []byte) (*ProxyConfiguration, *strict.Lines, error) {
	c := &ProxyConfiguration{}
	empty, lines, errs := strict.Decode(data, c, removed)
	if len(errs) > 0 {
		return nil, lines, utilerrors.NewAggregate(errs)
	}
	if empty { // an empty file has the right version and kind
		c.APIVersion, c.Kind = APIVersion, Kind
	}
	return c, lines, nil
}
