package conformance

import (
	"fmt"
	"strings"
	"testing"

	"github.com/watchproxy/watchproxy/bench/cluster"
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
	{"export", "$NAME", "resourceVersion=0&export=true", 400, upstream},
	{"export, declined", "$NAME", "resourceVersion=0&export=false", 200, upstream},
}

func TestGets(t *testing.T) {
	for _, c := range collections {
		t.Run(c.name, func(t *testing.T) {
			var rows []row
			for _, f := range getForms {
				if c.spares(f.name) {
					continue
				}
				target := c.expand(c.in("a") + "/" + f.path + "?" + f.query)
				r := row{name: f.name, request: get(target), status: f.status, from: f.from}
				if r.status == 500 && c.uncached {
					r.status = 400 // without the cache the apiserver returns another error
				}
				rows = append(rows, r)
			}
			check(t, rows)
		})
	}
}

// TestGetEveryObject gets every object of the suite. Each object contains different unusual bytes.
func TestGetEveryObject(t *testing.T) {
	var rows []row
	for _, target := range []string{
		configMaps.in("a") + "/plain", configMaps.in("a") + "/escapes", largeConfigMap,
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

// For a future resourceVersion, the server waits for a while and then responds with 504. A read
// from etcd does not wait.
func TestTooLargeResourceVersion(t *testing.T) {
	t.Parallel()
	const future = "resourceVersion=1000000000"
	var rows []row
	for _, c := range samples {
		for _, f := range []struct {
			name, target string
			from         source
		}{
			{"get", "/$NAME?" + future, ifCached},
			{"list", "?" + future, ifCached},
			{"list, not older", "?resourceVersionMatch=NotOlderThan&" + future, ifCached},
			{"list, exact", "?resourceVersionMatch=Exact&" + future, ifCached},
			{"page", "?limit=2&" + future, ifCached},
			{"page, not older", "?limit=2&resourceVersionMatch=NotOlderThan&" + future, ifCached},
			{"by label", "?labelSelector=app&" + future, ifCached},
			{"page by its token", "?limit=2&continue=" + token(`{"v":"meta.k8s.io/v1","rv":1000000000,"start":"/a"}`), upstream},
			{"one by name", "?fieldSelector=metadata.name%3D$NAME&" + future, ifCached},
			{"one by name, exact", "?fieldSelector=metadata.name%3D$NAME&resourceVersionMatch=Exact&" + future, upstream},
			{"the largest there is", "?resourceVersion=18446744073709551615", ifCached},
			{"the largest there is, exact", "?resourceVersion=18446744073709551615&resourceVersionMatch=Exact", ifCached},
		} {
			r := row{name: c.name + ", " + f.name, request: get(c.expand(c.in("a") + f.target)), status: 504, from: c.source(f.from), open: reach}
			if c.uncached && strings.HasSuffix(f.target, "=18446744073709551615&resourceVersionMatch=Exact") {
				// Kube-apiserver 1.37 compares the negative number with etcd's response.
				r.status, r.open = since(37, 500, 504), since(37, Rule(revisions), reach)
			}
			rows = append(rows, r)
		}
		state := row{status: 200, from: c.source(ifCached), open: reach}
		if c.uncached {
			state.open = reachByLot
		}
		for _, bookmarks := range []string{"", "&allowWatchBookmarks=true"} {
			state.name = c.name + ", state" + bookmarks
			state.request = get(c.in("a") + "?watch=true&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&" + future + bookmarks)
			rows = append(rows, state)
		}
	}
	rows = append(rows,
		row{name: "tells when to come again", request: get(pods.in("a") + "/web-1?" + future), status: 504, from: cache, open: reach, says: `"retryAfterSeconds":1`},
		row{name: "within the time that the client gives", request: get(pods.all() + "?timeout=1s&" + future), status: 504, from: upstream},
	)
	check(t, rows)
}

// The resourceVersion of a write to another collection is not in the future for the apiserver. This
// is true even if the stream of a quiet collection has not shown it. (A bookmark may have shown it,
// so the proxy's response can come from the cache or from upstream.)
func TestResourceVersionOfAnotherCollection(t *testing.T) {
	elsewhere := (object{of: configMaps, namespace: "default", name: cluster.UniqueName("elsewhere")}).createT(t)
	at := fmt.Sprintf("resourceVersion=%d", elsewhere)
	beginning := token(fmt.Sprintf(`{"v":"meta.k8s.io/v1","rv":%d,"start":"/!"}`, elsewhere))
	var rows []row
	for _, c := range []*collection{endpoints, nodes, planets, widgetsV2, coreEvents} {
		for _, f := range []struct {
			name, target string
			open         Rule
		}{
			{"get", "/" + c.one + "?" + at, nil},
			{"list", "?" + at, SomeState(elsewhere)},
			{"list, exact", "?resourceVersionMatch=Exact&" + at, nil},
			{"page", "?limit=1&" + at, nil},
			{"page by its token", "?limit=1&continue=" + beginning, nil},
			{"state", "?watch=true&timeoutSeconds=1&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&" + at, nil},
			{"changes", "?watch=true&timeoutSeconds=1&" + at, nil},
		} {
			rows = append(rows, row{name: c.name + ", " + f.name, request: get(c.in("a") + f.target), status: 200, from: anywhere, open: f.open})
		}
	}
	check(t, rows)
}
