package conformance

import (
	"fmt"
	"testing"
)

// getForms are the ways to ask for one object.
var getForms = []struct {
	name, path, query string
	status            int
	from              source
}{
	{"any", "$NAME", "resourceVersion=0", 200, cache},
	{"not older", "$NAME", "resourceVersion=$N", 200, cache},
	{"not older than long ago", "$NAME", "resourceVersion=1", 200, cache},
	{"most recent", "$NAME", "", 200, upstream},
	{"most recent, said twice over", "$NAME", "resourceVersion=", 200, upstream},
	{"nobody", "nobody", "resourceVersion=0", 404, cache},
	{"nobody, not older", "nobody", "resourceVersion=$N", 404, cache},
	{"nobody, most recent", "nobody", "", 404, upstream},
	{"a name that cannot be", "No_Body", "resourceVersion=0", 404, cache},
	{"deleted", "fleeting", "resourceVersion=$N", 404, cache},
	{"watch means nothing", "$NAME", "resourceVersion=0&watch=true", 200, cache},
	{"selectors mean nothing", "$NAME", "resourceVersion=0&labelSelector=app%3Dnobody&fieldSelector=metadata.name%3Dnobody", 200, cache},
	{"limit means nothing", "$NAME", "resourceVersion=0&limit=1&timeoutSeconds=1&allowWatchBookmarks=1", 200, cache},
	{"malformed selectors mean nothing", "$NAME", "resourceVersion=0&labelSelector=%21%21&fieldSelector=x", 200, upstream},
	{"match means nothing", "$NAME", "resourceVersion=0&resourceVersionMatch=Exact", 200, upstream},
	{"malformed resourceVersion", "$NAME", "resourceVersion=abc", 500, upstream},
	{"negative resourceVersion", "$NAME", "resourceVersion=-1", 500, upstream},
}

func TestGets(t *testing.T) {
	for _, c := range collections {
		t.Run(c.name, func(t *testing.T) {
			var rows []row
			for _, f := range getForms {
				target := c.expand(c.in("a") + "/" + f.path + "?" + f.query)
				rows = append(rows, row{name: f.name, request: get(target), status: f.status, from: f.from})
			}
			check(t, rows)
		})
	}
}

// Every object that rows are about, each with bytes that are awkward in its own way.
func TestGetEveryObject(t *testing.T) {
	var rows []row
	for _, target := range []string{
		configMaps.in("a") + "/plain", configMaps.in("a") + "/escapes", configMaps.in("a") + "/large",
		configMaps.in("a") + "/recreated", configMaps.in("a") + "/resembling", configMaps.in("a") + "/binary",
		configMaps.in("a") + "/x", configMaps.in("a") + "/x-1", configMaps.in("a") + "/x.1", configMaps.in("a") + "/x0",
		configMaps.in("a-b") + "/plain", configMaps.in("a0") + "/control", configMaps.in("a0") + "/plain", configMaps.in("many") + "/c-139",
		pods.in("a") + "/web-1", pods.in("a") + "/db-1", pods.in("a-b") + "/web-1",
		nodes.all() + "/n2", nodes.all() + "/n3", leases.in("a-b") + "/leader",
		namespaces.all() + "/late", namespaces.all() + "/default", namespaces.all() + "/kube-system",
		widgets.in("a") + "/numbers", widgets.in("a-b") + "/numbers", widgetsV2.in("a") + "/numbers", planets.all() + "/mars",
	} {
		rows = append(rows, row{name: target, request: get(target + "?resourceVersion=0"), status: 200, from: cache})
	}
	check(t, rows)
}

// A resourceVersion that nobody has reached is waited for, and then answered with 504. Whether it can be reached only
// the apiserver knows.
func TestTooLargeResourceVersion(t *testing.T) {
	const future = "resourceVersion=1000000000"
	checkTogether(t, upstream, []row{
		{name: "get", request: get(pods.in("a") + "/web-1?" + future), status: 504, open: reach, says: `"retryAfterSeconds":1`},
		{name: "list", request: get(pods.all() + "?" + future), status: 504, open: reach},
		{name: "list, exact", request: get(planets.all() + "?" + future + "&resourceVersionMatch=Exact"), status: 504, open: reach},
		{name: "page", request: get(configMaps.in("a") + "?limit=2&" + future), status: 504, open: reach},
		{name: "page by its token", request: get(configMaps.all() + "?continue=" + token(`{"v":"meta.k8s.io/v1","rv":1000000000,"start":"/a/x"}`)), status: 504, open: reach},
		{name: "one by name", request: get(configMaps.in("a") + "?fieldSelector=metadata.name%3Dx&" + future), status: 504, open: reach},
		{name: "one by name, exact", request: get(configMaps.in("a") + "?fieldSelector=metadata.name%3Dx&resourceVersionMatch=Exact&" + future), status: 504, open: reach},
		{name: "the largest there is", request: get(nodes.all() + "?resourceVersion=18446744073709551615"), status: 504, open: reach},
		{name: "the largest there is, exact", request: get(nodes.all() + "?resourceVersion=18446744073709551615&resourceVersionMatch=Exact"), status: 504, open: reach},
		{name: "within the time that the client gives", request: get(pods.all() + "?timeout=1s&" + future), status: 504},
	})
}

// What a write elsewhere has reached is no future to the apiserver, though nothing has come of it on the stream of a
// collection that rests. (A bookmark might, so that the proxy's answer can come from either place.)
func TestResourceVersionOfAnotherCollection(t *testing.T) {
	elsewhere, err := (object{of: configMaps, namespace: "default", name: unique("elsewhere")}).create(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	c := endpoints
	at := fmt.Sprintf("resourceVersion=%d", elsewhere)
	checkTogether(t, anywhere, []row{
		{name: "get", request: get(c.in("a") + "/backends?" + at), status: 200},
		{name: "list", request: get(c.in("a") + "?" + at), status: 200, open: someState(elsewhere)},
		{name: "list, exact", request: get(c.in("a") + "?resourceVersionMatch=Exact&" + at), status: 200},
		{name: "page", request: get(c.in("a") + "?limit=1&" + at), status: 200},
		{name: "page by its token", request: get(c.in("a") + "?continue=" + token(fmt.Sprintf(`{"v":"meta.k8s.io/v1","rv":%d,"start":"/a"}`, elsewhere))), status: 200},
	})
}
