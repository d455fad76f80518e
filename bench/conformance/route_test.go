package conformance

import (
	"net/http"
	"testing"
)

// The proxy interprets paths like kube-apiserver's RequestInfo and routes. It forwards every path
// that is not in canonical form.
func TestRoutes(t *testing.T) {
	const atZero = "?resourceVersion=0"
	check(t, []row{
		{name: "trailing slash", request: get("/api/v1/namespaces/a/pods/" + atZero), status: 200, from: upstream, open: SomeState(0)},
		{name: "trailing slash of an object", request: get("/api/v1/namespaces/a/pods/web-1/" + atZero), status: 200, from: upstream},
		{name: "trailing slash of custom resources", request: get("/apis/example.com/v1/namespaces/a/widgets/" + atZero), status: 200, from: upstream, open: SomeState(0)},
		{name: "doubled slash at the front", request: get("//api/v1/pods" + atZero), status: 404, from: upstream},
		{name: "doubled slash inside", request: get("/api/v1//pods" + atZero), status: 404, from: upstream},
		{name: "doubled slash before the name", request: get("/api/v1/namespaces/a/pods//web-1" + atZero), status: 404, from: upstream},
		{name: "empty namespace", request: get("/api/v1/namespaces//pods" + atZero), status: 200, from: upstream},
		{name: "percent-encoded name", request: get("/api/v1/namespaces/a/pods/web%2D1" + atZero), status: 200, from: upstream},
		{name: "percent-encoded slash in a name", request: get("/api/v1/namespaces/a/pods/web%2F1" + atZero), status: 404, from: upstream},
		{name: "percent-encoded resource", request: get("/api/v1/namespaces/a/p%6Fds/web-1" + atZero), status: 200, from: upstream},
		{name: "percent-encoded dots", request: get("/api/v1/namespaces/a/pods/%2E%2E" + atZero), status: 400, from: upstream},
		{name: "dots", request: get("/api/v1/namespaces/a/../a-b/pods" + atZero), status: 404, from: upstream},
		{name: "single dot", request: get("/api/v1/./pods" + atZero), status: 404, from: upstream},
		{name: "semicolon", request: get("/api/v1/namespaces/a/pods;x" + atZero), status: 404, from: upstream},
		{name: "question mark alone", request: get("/api/v1/namespaces/a/pods/web-1?"), status: 200, from: upstream},
		{name: "upper case", request: get("/API/V1/pods" + atZero), status: 404, from: upstream},
		{name: "singular", request: get("/api/v1/namespaces/a/pod/web-1" + atZero), status: 404, from: upstream},
		{name: "short name", request: get("/api/v1/namespaces/a/cm" + atZero), status: 404, from: upstream},

		{name: "no such group", request: get("/apis/nonsense.example.com/v1/things" + atZero), status: 404, from: upstream},
		{name: "core resource as a group's", request: get("/apis/v1/pods" + atZero), status: 404, from: upstream},

		{name: "object without its namespace", request: get("/api/v1/pods/web-1" + atZero), status: 404, from: upstream},
		{name: "custom object without its namespace", request: get("/apis/example.com/v1/widgets/numbers" + atZero), status: 404, from: upstream},
		{name: "cluster-scoped in a namespace", request: get("/api/v1/namespaces/a/nodes" + atZero), status: 404, from: upstream},
		{name: "cluster-scoped object in a namespace", request: get("/api/v1/namespaces/a/nodes/n1" + atZero), status: 404, from: upstream},
		{name: "cluster-scoped custom resource in a namespace", request: get("/apis/example.com/v1/namespaces/a/planets" + atZero), status: 404, from: upstream},
		{name: "namespace in a namespace", request: get("/api/v1/namespaces/a/namespaces/a" + atZero), status: 404, from: upstream},
		{name: "namespace that is not there", request: get("/api/v1/namespaces/nobody/pods" + atZero), status: 200, from: cache, open: SomeState(0)},
		{name: "custom resources of a namespace that is not there", request: get("/apis/example.com/v1/namespaces/nobody/widgets" + atZero), status: 200, from: cache, open: SomeState(0)},
		{name: "object of a namespace that is not there", request: get("/api/v1/namespaces/nobody/pods/web-1" + atZero), status: 404, from: cache},
		{name: "namespace that cannot be", request: get("/api/v1/namespaces/No_Body/pods" + atZero), status: 200, from: cache, open: SomeState(0)},
		{name: "namespace that begins like another", request: get("/api/v1/namespaces/a-/pods" + atZero), status: 200, from: cache, open: SomeState(0)},

		{name: "subresource", request: get("/api/v1/namespaces/a/pods/web-1/status" + atZero), status: 200, from: upstream},
		{name: "subresource of a namespace", request: get("/api/v1/namespaces/a/status" + atZero), status: 200, from: upstream},
		{name: "more behind the name", request: get("/api/v1/namespaces/a/pods/web-1/status/x" + atZero), status: 404, from: upstream},

		{name: "no resource: health", request: get("/livez?verbose"), status: 200, from: upstream, moving: true},
		{name: "no resource: root", request: get("/"), status: 200, from: upstream},
		{name: "no resource: nothing there", request: get("/nonsense"), status: 404, from: upstream},

		{name: "watch prefix alone", request: get("/api/v1/watch"), status: 500, from: upstream},
		{name: "not cached: secrets", request: get("/api/v1/namespaces/a/secrets" + atZero), status: 200, from: upstream, open: SomeState(0)},
	})
}

// All methods except GET are forwarded. Their errors come from the apiserver.
func TestMethods(t *testing.T) {
	method := func(method, target, body string) request {
		return request{Method: method, Target: target, Body: body}.With("Content-Type", "application/json")
	}
	check(t, []row{
		{name: "POST to a list without a body", request: method(http.MethodPost, pods.in("a"), ""), status: 400, from: upstream},
		{name: "POST to a list, malformed", request: method(http.MethodPost, pods.in("a"), "{"), status: 400, from: upstream},
		{name: "POST to a list, another kind", request: method(http.MethodPost, pods.in("a"), `{"kind":"Node","apiVersion":"v1","metadata":{"name":"x"}}`), status: 400, from: upstream},
		{name: "POST of what is there", request: method(http.MethodPost, configMaps.in("a"), `{"metadata":{"name":"plain"}}`), status: 409, from: upstream},
		{name: "POST to a list of all namespaces", request: method(http.MethodPost, pods.all(), `{"metadata":{"name":"x"}}`), status: 405, from: upstream},
		{name: "POST with a resourceVersion in the query", request: method(http.MethodPost, pods.in("a")+"?resourceVersion=0", `{`), status: 400, from: upstream},
		{name: "PUT of an old version", request: method(http.MethodPut, configMaps.in("a")+"/plain", `{"metadata":{"name":"plain","resourceVersion":"1"}}`), status: 409, from: upstream},
		{name: "PUT of nobody", request: method(http.MethodPut, configMaps.in("a")+"/nobody", `{"metadata":{"name":"nobody","resourceVersion":"1"}}`), status: 404, from: upstream},
		{name: "PATCH of another media type", request: method(http.MethodPatch, configMaps.in("a")+"/plain", `{}`), status: 415, from: upstream},
		{name: "DELETE of nobody", request: method(http.MethodDelete, configMaps.in("a")+"/nobody", ""), status: 404, from: upstream},
		{name: "DELETE of a collection, dry", request: method(http.MethodDelete, leases.in("a")+"?dryRun=All", ""), status: 200, from: upstream, open: SomeState(0)},
		{name: "a method of its own", request: method("BREW", pods.in("a"), ""), status: 405, from: upstream},
		{name: "GET with a body", request: method(http.MethodGet, pods.in("a")+"/web-1?resourceVersion=0", "x"), status: 200, from: upstream},
	})
}
