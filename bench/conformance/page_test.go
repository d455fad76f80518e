package conformance

import (
	"encoding/base64"
	"fmt"
	"net/url"
	"strings"
	"testing"
)

// A list is walked page by page to its end. Every page, with its token and the count of what remains, must be the
// apiserver's, so each token goes on at both servers: whoever began the walk, the other can continue it.
func TestPageWalks(t *testing.T) {
	for _, walk := range []struct {
		name  string
		of    *collection
		query string
		limit int
		begun source // where the proxy's first page comes from
		// recent is for a first page whose resourceVersion is the server's choice.
		recent bool
	}{
		{"all", configMaps, configMaps.all() + "?resourceVersion=$N&resourceVersionMatch=Exact", 37, cache, false},
		{"all, one larger than a page of the tree", configMaps, configMaps.all() + "?resourceVersion=$N", 65, cache, false},
		{"all, an earlier state", configMaps, configMaps.all() + "?resourceVersion=$PAST", 64, cache, false},
		{"one namespace", configMaps, configMaps.in("many") + "?resourceVersion=$N", 14, cache, false},
		{"one namespace, one by one", configMaps, configMaps.in("a") + "?resourceVersion=$N", 1, cache, false},
		{"by label", configMaps, configMaps.in("many") + "?resourceVersion=$N&labelSelector=parity%3Dodd", 9, cache, false},
		{"by label, with nothing on the last pages", configMaps, configMaps.all() + "?resourceVersion=$N&labelSelector=parity%21%3Dodd,parity%21%3Deven", 3, cache, false},
		{"by field", configMaps, configMaps.all() + "?resourceVersion=$N&resourceVersionMatch=Exact&fieldSelector=metadata.name%21%3Dplain", 50, cache, false},
		{"by namespace as a field", configMaps, configMaps.all() + "?resourceVersion=$N&resourceVersionMatch=Exact&fieldSelector=metadata.namespace%3Da", 2, upstream, false},
		{"by another namespace as a field", configMaps, configMaps.all() + "?resourceVersion=$N&resourceVersionMatch=Exact&fieldSelector=metadata.namespace%21%3Dmany", 3, cache, false},
		{"by node", pods, pods.all() + "?resourceVersion=$N&resourceVersionMatch=Exact&fieldSelector=spec.nodeName%3Dn1", 1, cache, false},
		{"cluster-scoped", nodes, nodes.all() + "?resourceVersion=$N", 1, cache, false},
		{"custom resources", widgets, widgets.all() + "?resourceVersion=$N", 7, cache, false},
		{"custom resources in a namespace", widgetsV2, widgetsV2.in("many") + "?resourceVersion=$N", 6, cache, false},
		{"cluster-scoped custom resources", planets, planets.all() + "?resourceVersion=$N", 1, cache, false},
		{"begun at the most recent state", configMaps, configMaps.all() + "?", 60, cache, true},
		{"begun at the most recent state, in a namespace", configMaps, configMaps.in("many") + "?", 60, cache, true},
		{"begun at the most recent state, by label", configMaps, configMaps.in("many") + "?labelSelector=parity%3Dodd", 20, cache, true},
		{"begun at a state not older", configMaps, configMaps.all() + "?resourceVersion=$N&resourceVersionMatch=NotOlderThan", 45, cache, true},
		{"begun at a state not older, in a namespace", configMaps, configMaps.in("many") + "?resourceVersion=$N&resourceVersionMatch=NotOlderThan", 45, cache, true},
	} {
		t.Run(walk.name, func(t *testing.T) {
			first := row{request: get(fmt.Sprintf("%s&limit=%d", walk.of.expand(walk.query), walk.limit)), status: 200, from: walk.begun}
			if walk.recent {
				first.open = someState(walk.of.now)
			}
			first.check(t)
			if !walk.recent {
				walkOn(t, first.target, apiserver.must(t, first.request, 200))
				return
			}
			// Their first pages may be of different states. Either's tokens are good at both.
			pages := []reply{apiserver.must(t, first.request, 200), proxied.must(t, first.request, 200)}
			passBy(t, walk.of)
			for _, page := range pages {
				walkOn(t, first.target, page)
			}
		})
	}
}

// walkOn follows the tokens from the first page of a list.
func walkOn(t *testing.T, first string, page reply) {
	t.Helper()
	path, query, _ := strings.Cut(first, "?")
	params, err := url.ParseQuery(query)
	if err != nil {
		t.Fatal(err)
	}
	params.Del("resourceVersion")
	params.Del("resourceVersionMatch")
	if listToken(page) == "" {
		t.Error("one page holds all: there is nothing to walk")
	}
	for listToken(page) != "" && !t.Failed() {
		params.Set("continue", listToken(page))
		next := row{request: get(path + "?" + params.Encode()), status: 200, from: cache}
		next.check(t)
		page = apiserver.must(t, next.request, 200)
	}
}

// passBy writes to a collection, so that the proxy's cache has moved on from whatever the apiserver's had reached: the
// rows about what comes after that are about the cache.
func passBy(t *testing.T, c *collection) {
	t.Helper()
	o := object{of: c, namespace: "default", name: "passer-by"}
	rv, err := o.create(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := o.remove(t.Context()); err != nil {
		t.Fatal(err)
	}
	proxied.must(t, get(fmt.Sprintf("%s?limit=1&resourceVersionMatch=NotOlderThan&resourceVersion=%d", c.all(), rv)), 200)
}

// token encodes a continue token as it is on the wire.
func token(plain string) string { return base64.RawURLEncoding.EncodeToString([]byte(plain)) }

func TestContinueTokens(t *testing.T) {
	cm := func(query string) request { return get(configMaps.expand(configMaps.all() + "?" + query)) }
	in := func(plain string) string {
		return "continue=" + token(strings.ReplaceAll(plain, "$N", fmt.Sprint(configMaps.now)))
	}
	const v1 = `{"v":"meta.k8s.io/v1",`
	check(t, []row{
		{name: "with the slash of the apiserver's cache", request: cm(in(v1 + `"rv":$N,"start":"/many/c-100\u0000"}`)), status: 200, from: cache},
		{name: "without the slash, as etcd makes them", request: cm(in(v1 + `"rv":$N,"start":"many/c-100\u0000"}`)), status: 200, from: cache},
		{name: "without a limit", request: cm(in(v1 + `"rv":$N,"start":"a/x"}`)), status: 200, from: cache},
		{name: "inside a key", request: cm("limit=3&" + in(v1+`"rv":$N,"start":"/many/c-1"}`)), status: 200, from: cache},
		{name: "beyond the end", request: cm(in(v1 + `"rv":$N,"start":"/zzz"}`)), status: 200, from: cache},
		{name: "in a namespace", request: get(configMaps.in("many") + "?limit=2&" + in(v1+`"rv":$N,"start":"/c-100\u0000"}`)), status: 200, from: cache},
		{name: "in a namespace, before its first", request: get(configMaps.in("many") + "?limit=2&" + in(v1+`"rv":$N,"start":"/!"}`)), status: 200, from: cache},
		{name: "in a namespace, with a slash inside", request: get(configMaps.in("many") + "?limit=2&" + in(v1+`"rv":$N,"start":"/c-1/x"}`)), status: 200, from: cache},
		{name: "of before the proxy followed", request: cm(in(v1 + `"rv":` + fmt.Sprint(old) + `,"start":"/a/x"}`)), status: 200, from: upstream},
		{name: "of any resourceVersion", request: cm("limit=2&" + in(v1+`"rv":-1,"start":"/many/c-100"}`)), status: 200, from: cache, open: someState(configMaps.now)},
		{name: "of any resourceVersion, in a namespace", request: get(configMaps.in("many") + "?limit=3&" + in(v1+`"rv":-1,"start":"/c-100\u0000"}`)), status: 200, from: cache, open: someState(configMaps.now)},
		{name: "of any resourceVersion, by label", request: get(configMaps.in("many") + "?limit=3&labelSelector=parity%3Dodd&" + in(v1+`"rv":-1,"start":"/c-100\u0000"}`)), status: 200, from: cache, open: someState(configMaps.now)},
		{name: "of any resourceVersion, to the end", request: cm(in(v1 + `"rv":-7,"start":"/many/c-100"}`)), status: 200, from: cache, open: someState(configMaps.now)},
		{name: "of no resourceVersion", request: cm(in(v1 + `"start":"/a/x"}`)), status: 400, from: upstream, says: "incorrect encoded start resourceVersion"},
		{name: "of no start", request: cm(in(v1 + `"rv":$N}`)), status: 400, from: upstream, says: "encoded start key empty"},
		{name: "of another version", request: cm(in(`{"v":"v2","rv":$N,"start":"/a/x"}`)), status: 400, from: upstream, says: "does not recognize this encoded version v2"},
		{name: "that leaves the prefix", request: cm(in(v1 + `"rv":$N,"start":"/../secrets/a"}`)), status: 400, from: upstream},
		{name: "that leaves the namespace", request: get(configMaps.in("many") + "?" + in(v1+`"rv":$N,"start":"/../a/x"}`)), status: 400, from: upstream},
		{name: "with a doubled slash", request: cm(in(v1 + `"rv":$N,"start":"//a/x"}`)), status: 400, from: upstream},
		{name: "that ends with a slash", request: cm("limit=2&" + in(v1+`"rv":$N,"start":"/a/"}`)), status: 400, from: upstream},
		{name: "that is no base64", request: cm("continue=%25%25"), status: 400, from: upstream},
		{name: "with padding", request: cm("continue=" + token(v1+`"rv":1,"start":"/a/x"}`) + "%3D"), status: 400, from: upstream},
		{name: "that is no JSON", request: cm("continue=" + token("x")), status: 400, from: upstream},
		{name: "with another member", request: cm(in(v1 + `"rv":$N,"start":"/a/x","more":1}`)), status: 200, from: cache},
		{name: "with members in other letters", request: cm(in(`{"V":"meta.k8s.io/v1","RV":$N,"Start":"/a/x"}`)), status: 200, from: cache},
		{name: "empty", request: cm("resourceVersion=$N&continue="), status: 200, from: cache, open: someState(configMaps.now)},
		{name: "with a resourceVersion", request: cm("resourceVersion=$N&" + in(v1+`"rv":$N,"start":"/a/x"}`)), status: 400, from: upstream, says: "specifying resource version is not allowed when using continue"},
		{name: "with resourceVersion 0 ignores the limit", request: cm("resourceVersion=0&limit=2&" + in(v1+`"rv":$N,"start":"/many/c-100"}`)), status: 200, from: upstream},
		{name: "with a match", request: cm("resourceVersionMatch=NotOlderThan&resourceVersion=$N&" + in(v1+`"rv":$N,"start":"/a/x"}`)), status: 422, from: upstream, says: "resourceVersionMatch is forbidden when continue is provided"},
		{name: "of one by name", request: cm("fieldSelector=metadata.name%3Dx,metadata.namespace%3Da&" + in(v1+`"rv":$N,"start":"/a/w"}`)), status: 200, from: upstream},
		{name: "of one by name in a namespace", request: get(configMaps.in("a") + "?fieldSelector=metadata.name%3Dx&" + in(v1+`"rv":$N,"start":"/w"}`)), status: 200, from: upstream},
		{name: "of what was compacted", request: cm(in(v1 + `"rv":1,"start":"/a/x"}`)), status: 200, from: upstream},
	})
}
