package config

import (
	"fmt"
	"os"

	"sigs.k8s.io/yaml"
)

// Load reads a configuration file, strictly, without defaults or validation,
// so that flags can be laid over it first.
func Load(path string) (*ProxyConfiguration, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("read configuration: %w", err)
	}
	var c ProxyConfiguration
	if err := yaml.UnmarshalStrict(data, &c); err != nil {
		return nil, fmt.Errorf("read configuration %s: %w", path, err)
	}
	return &c, nil
}
