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

// Load reads a configuration file, strictly, without defaults or validation, so that
// flags can be laid over it first. An error tells everything that is wrong with the file, each with
// the path of its field (a [field.Error]): also what Validate would say of the rest.
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
		c.Listen = "127.0.0.1:0" // unlike adminListen, whatever that is
	}
	c.SetDefaults()
	for _, err := range c.validate() {
		if !d.explains(err.Field) {
			errs = append(errs, err)
		}
	}
	return nil, utilerrors.NewAggregate(errs)
}

// documents returns what the first document of a file holds, nil for nothing. There must be no other.
func documents(data []byte) (root *yaml.Node, errs []error) {
	decoder := yaml.NewDecoder(bytes.NewReader(data))
	for n := 1; ; n++ {
		var document yaml.Node
		err := decoder.Decode(&document)
		if errors.Is(err, io.EOF) {
			return root, errs
		}
		if err != nil { // what comes before it is no document either
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

// explains tells whether an error of validation is about a field that could not be read, or only follows from its having
// the default instead.
func (d *decoder) explains(path string) bool {
	for _, err := range d.errs {
		if err.Type == field.ErrorTypeForbidden { // left out, as it is no field
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

// follows are the fields of which validation says, by another field, whether they fit.
var follows = map[string][]string{
	"listen":              {"tls", "authentication.mode", "authentication.anonymous", "authentication.x509"},
	"authentication":      {"tls"},
	"authentication.mode": {"tls", "authentication.anonymous", "authentication.x509"},
}
