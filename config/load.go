package config

import (
	"errors"
	"fmt"
	"os"
	"strings"

	"sigs.k8s.io/json"
	"sigs.k8s.io/yaml"
)

// Load reads a configuration file, strictly, without defaults or validation, so that
// flags can be laid over it first. An error tells everything that is wrong with the file: if it
// can be read but for fields that are unknown or given twice, also what Validate would say.
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
	text, err := yaml.YAMLToJSON(data)
	if err != nil {
		return nil, err
	}
	_, twice := yaml.YAMLToJSONStrict(data) // the library knows no more than yes or no and one of them
	var c ProxyConfiguration
	unknown, err := json.UnmarshalStrict(text, &c)
	wrong := append([]error{twice}, unknown...)
	if err == nil && errors.Join(wrong...) == nil {
		return &c, nil
	}
	if err == nil { // what is there could be read
		c.SetDefaults()
		err = c.Validate()
	}
	return nil, all(append(wrong, err))
}

// all is one error of several, in a line.
func all(errs []error) error {
	var texts []string
	for _, err := range errs {
		if err != nil {
			texts = append(texts, strings.Join(strings.Fields(err.Error()), " "))
		}
	}
	return errors.New(strings.Join(texts, "; "))
}
