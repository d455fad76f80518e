package conformance

import (
	"flag"
	"testing"
)

// scoped gives the suite's proxy caches of parts of resources: those of nodeScopes, or with -rbac those
// of rightsScopes.
var scoped = flag.Bool("scoped", false, "the proxy's caches have only parts of resources: a node's, or what the roles of -rbac allow")

// inParts reports whether the present proxy has such caches. Then the apiserver may answer what a
// cache of the whole resource would answer. A cache must still not answer what is expected from the
// apiserver.
var inParts bool

// nodeScopes are the settings of a node's proxy, with one scope of each kind.
const nodeScopes = `scopes: [{resources: [pods], fieldSelector: spec.nodeName=n1}, {resources: [nodes], fieldSelector: metadata.name=n1},
	{resources: [configmaps], labelSelector: parity=odd}, {resources: [namespaces, endpoints]}, {namespaces: [a-b]}]`

// rightsScopes are the namespaces that the roles of testdata/namespaces.yaml allow.
const rightsScopes = `scopes: [{namespaces: [a, a-b, default]}]`

// parts returns the paths of those parts of a collection that the proxy's caches have.
func (c *collection) parts() []string {
	switch {
	case !inParts:
		return []string{c.all() + "?"}
	case *rights == "":
		return c.partsOfNode()
	case !c.namespaced || c.custom():
		return nil // no Role can give the right to read definitions
	}
	return []string{c.in("a") + "?", c.in("a-b") + "?", c.in("default") + "?"}
}

func (c *collection) partsOfNode() []string {
	switch c.all() {
	case pods.all():
		return []string{c.all() + "?fieldSelector=spec.nodeName%3Dn1&"}
	case nodes.all():
		return []string{c.all() + "?fieldSelector=metadata.name%3Dn1&"}
	case configMaps.all():
		return []string{c.all() + "?labelSelector=parity%3Dodd&"}
	case namespaces.all(), endpoints.all():
		return []string{c.all() + "?"}
	}
	if !c.namespaced {
		return nil
	}
	return []string{c.in("a-b") + "?"}
}

func (c *collection) custom() bool {
	return c.root != "/api/v1" && c.kind != leases.kind && c.kind != newEvents.kind
}

// needsWhole skips a test of what caches of whole resources do.
func needsWhole(t *testing.T) {
	t.Helper()
	if inParts {
		t.Skip("-scoped: the apiserver answers these requests, because no cache has the whole resource")
	}
}
