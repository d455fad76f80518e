package main

import (
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/watchproxy/watchproxy/config"
	"github.com/watchproxy/watchproxy/proxy/projection"
)

func TestViews(t *testing.T) {
	views := viewsOf([]config.View{
		{Name: "slim", Resources: []string{"pods", "deployments.apps"}, Fields: []string{"spec.a[*].b", `spec["c.d"]`}},
		{Name: "most", Drop: []string{"spec.a[*].b"}},
	})
	const object = `{"kind":"K","metadata":{"name":"n","labels":{}},"spec":{"a":[{"b":1,"e":2}],"c.d":3,"f":4}}`
	for name, want := range map[string]string{
		"slim": `{"kind":"K","metadata":{"name":"n"},"spec":{"a":[{"b":1}],"c.d":3}}`,
		"most": `{"kind":"K","metadata":{"name":"n","labels":{}},"spec":{"a":[{"e":2}],"c.d":3,"f":4}}`,
	} {
		if got, err := views[name].Fields.Append(nil, []byte(object)); err != nil || string(got) != want || views[name].Name != name {
			t.Errorf("%s: %s, %v", name, got, err)
		}
	}
	for resource, cut := range map[schema.GroupResource]bool{{Resource: "pods"}: true, {Group: "apps", Resource: "deployments"}: true, {Resource: "deployments"}: false} {
		if (views["slim"].Of(resource) != nil) != cut || views["most"].Of(resource) == nil {
			t.Errorf("%s: not as listed", resource)
		}
	}
}

// The configuration refuses to drop what a projection always keeps.
func TestIdentityIsNotDropped(t *testing.T) {
	for _, kept := range projection.Identity {
		var names []string
		for _, s := range kept {
			names = append(names, s.Key)
		}
		path := strings.Join(names, ".")
		c := config.Default()
		if c.Views = []config.View{{Name: "a", Drop: []string{path}}}; c.Validate() == nil {
			t.Errorf("%s can be dropped", path)
		}
	}
}
