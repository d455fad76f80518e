package config

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"go.yaml.in/yaml/v3"
	utilerrors "k8s.io/apimachinery/pkg/util/errors"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// Load reads a configuration file strictly. It does not set defaults or validate the result, so
// that flags can override fields first. But if it finds errors in the file, it also validates the
// rest, so that its error covers the whole file. Errors about a field are of type [field.Error] and
// have its path.
func Load(path string) (*ProxyConfiguration, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("read configuration: %w", err)
	}
	c, err := parse(data)
	if err != nil {
		return nil, fmt.Errorf("read configuration %s: %w", path, err)
	}
	return c, nil
}

func parse(data []byte) (*ProxyConfiguration, error) {
	root, errs := documents(data)
	if root == nil && len(errs) > 0 {
		return nil, utilerrors.NewAggregate(errs)
	}
	var c ProxyConfiguration
	var d decoder
	if root != nil {
		d.object(root, &c)
	}
	for _, err := range d.errs {
		errs = append(errs, err)
	}
	if len(errs) == 0 {
		return &c, nil
	}
	if d.explains("listen") {
		c.Listen = "127.0.0.1:0" // differs from adminListen, whatever adminListen is
	}
	c.SetDefaults()
	for _, err := range c.validate() {
		if !d.explains(err.Field) {
			errs = append(errs, err)
		}
	}
	return nil, utilerrors.NewAggregate(errs)
}

// documents returns the content of the first document of a file, or nil if it is empty. Each
// further document is an error unless it is empty.
func documents(data []byte) (root *yaml.Node, errs []error) {
	decoder := yaml.NewDecoder(bytes.NewReader(data))
	for n := 1; ; n++ {
		var document yaml.Node
		err := decoder.Decode(&document)
		if errors.Is(err, io.EOF) {
			return root, errs
		}
		if err != nil { // the documents before the error are not used either
			return nil, append(errs, err)
		}
		content := document.Content[0]
		switch {
		case content.ShortTag() == null:
		case n == 1 && content.Kind != yaml.MappingNode:
			return nil, append(errs, fmt.Errorf("must be an object with the fields apiVersion and kind, but is %s", kindOf(content)))
		case n == 1:
			root = content
		default:
			errs = append(errs, fmt.Errorf("line %d: document %d of the file: a configuration is the first and only one, remove others", content.Line, n))
		}
	}
}

// explains reports whether a validation error at path is only a consequence of an error in d.
// Either the field could not be read, or another field that it must fit could not be read and has
// its default instead.
func (d *decoder) explains(path string) bool {
	for _, err := range d.errs {
		if err.Type == field.ErrorTypeForbidden { // an unknown or repeated field, which was skipped
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

// follows gives, for a field, the fields whose validation depends on it.
var follows = map[string][]string{
	"listen":              {"tls", "authentication.mode", "authentication.anonymous", "authentication.x509"},
	"authentication":      {"tls"},
	"authentication.mode": {"tls", "authentication.anonymous", "authentication.x509"},
}
