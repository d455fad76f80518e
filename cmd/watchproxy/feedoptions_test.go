package main

import (
	"slices"
	"testing"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/watchproxy/watchproxy/watchcache/object"
)

// Each namespace is a scope. A scope comes before the scopes that contain it.
func TestScopes(t *testing.T) {
	t.Setenv("NODE_NAME", "n1")
	c, err := (&serveFlags{}).configuration([]byte(`apiVersion: watchproxy.dev/v1alpha1
kind: ProxyConfiguration
cache:
  scopes:
  - resources: [pods, deployments.apps]
  - {resources: [pods], namespaces: [a, b]}
  - {resources: [pods], namespaces: [a], fieldSelector: spec.nodeName=$(NODE_NAME)}
  - labelSelector: app in (web,db),tier
`))
	if err != nil {
		t.Fatal(err)
	}
	o := feedOptions(c.Cache, "own")
	if o.OwnNamespace != "own" {
		t.Errorf("the own namespace is %q", o.OwnNamespace)
	}
	for resource, want := range map[schema.GroupResource][]object.Scope{
		{Resource: "pods"}:                       {{Namespace: "a", Fields: "spec.nodeName=n1"}, {Namespace: "a"}, {Namespace: "b"}, {}},
		{Group: "apps", Resource: "deployments"}: {{}},
		{Resource: "services"}:                   {{Labels: "app in (db,web),tier"}},
	} {
		if got := o.ScopesOf(resource); !slices.Equal(got, want) {
			t.Errorf("%s: %+v, want %+v", resource, got, want)
		}
	}
}
