package config

import (
	"strings"
	"testing"
)

func TestViews(t *testing.T) {
	const all = `views:
- name: slim
  resources: [pods, nodes]
  fields: [metadata.labels, metadata.name, spec.nodeName, spec, "status.conditions[*].type"]
- name: unmanaged
  drop: [metadata.managedFields, 'metadata.annotations["kubectl.kubernetes.io/last-applied-configuration"]', metadata.namespaces]
- {name: 1-types, resources: [secrets], fields: [type]}
`
	c, err := load(t, head+all)
	if err != nil || len(c.Views) != 3 || len(c.Views[0].Fields) != 5 || c.Views[1].Drop[0] != "metadata.managedFields" || c.Views[2].Resources[0] != "secrets" {
		t.Errorf("%+v, %v", c, err)
	}
	for text, want := range map[string]string{
		"name: a, fields: [spec]": "",
		"fields: [spec]":          "views[0].name: ",
		"name: " + strings.Repeat("a", 64) + ", drop: [spec]": "views[0].name: ",
		"name: a, fields: [spec]}, {name: a, drop: [spec]":    "views[1].name: Duplicate",
		"name: a": "views[0].fields: Required value: list the fields to keep, list fields in drop, or set namespaces to allowed",
		"name: a, fields: [spec], drop: [status]":          "views[0].drop: Forbidden",
		"name: a, fields: [spec], resources: [Pods]":       "views[0].resources[0]: ",
		"name: a, fields: [spec], resources: [pods, pods]": "views[0].resources[1]: Duplicate",
		"name: a, fields: [spec, 'spec.containers[0]']":    "views[0].fields[1]: Invalid value: \"spec.containers[0]\": position 16: must be a step",
		"name: a, fields: ['']":                            "views[0].fields[0]: ",
		"name: a, fields: [spec.a, 'spec[\"a\"]']":         "views[0].fields[1]: Duplicate",
		"name: a, drop: [metadata]":                        "views[0].drop[0]: Invalid value: \"metadata\": must not be dropped: objects keep [apiVersion kind metadata.name metadata.namespace metadata.uid metadata.resourceVersion]",
		"name: a, drop: [spec, apiVersion]":                "views[0].drop[1]: ",
		"name: a, drop: ['metadata[\"name\"]']":            "views[0].drop[0]: ",
		"name: a, drop: [metadata.uid.x]":                  "views[0].drop[0]: ",
		"name: a, namespaces: all":                         "views[0].fields: Required",
		"name: a, namespaces: mine":                        "views[0].namespaces: Unsupported value: \"mine\": supported values: \"all\", \"allowed\"",
		"name: a, namespaces: allowed":                     "views[0].namespaces: Forbidden: allowed needs users: set authentication.mode to delegated",
	} {
		_, err := load(t, head+"views: [{"+text+"}]\n")
		refusedFor(t, text, err, want)
	}
}
