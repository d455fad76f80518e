package conformance

import "testing"

// The proxy interprets a token like the apiserver's cache or etcd.
func TestContinueTokens(t *testing.T) {
	const v1 = `{"v":"meta.k8s.io/v1",`
	for _, c := range samples {
		bare, rest := c.one, SomeState(c.now)
		if c.namespaced {
			bare = "a/" + c.one
		}
		start := "/" + bare
		t.Run(c.name, func(t *testing.T) {
			var rows []row
			for _, f := range []struct {
				name, query, token string
				status             int
				from               source
				open               Rule
				says               string
			}{
				{"with the slash of the apiserver's cache", "", v1 + `"rv":$N,"start":"` + start + `\u0000"}`, 200, cache, nil, ""},
				{"without the slash, as etcd makes them", "", v1 + `"rv":$N,"start":"` + bare + `\u0000"}`, 200, cache, nil, ""},
				{"a page", "limit=1&", v1 + `"rv":$N,"start":"` + start + `"}`, 200, cache, nil, ""},
				{"a page without the slash", "limit=1&", v1 + `"rv":$N,"start":"` + bare + `"}`, 200, cache, nil, ""},
				{"an earlier page", "limit=1&", v1 + `"rv":$PAST,"start":"` + start + `"}`, 200, cache, nil, ""},
				{"inside a key", "limit=3&", v1 + `"rv":$N,"start":"` + start[:len(start)-1] + `"}`, 200, cache, nil, ""},
				{"by label", "limit=1&labelSelector=app%3Dweb&", v1 + `"rv":$N,"start":"/!"}`, 200, cache, nil, ""},
				{"before the first", "limit=2&", v1 + `"rv":$N,"start":"/!"}`, 200, cache, nil, ""},
				{"beyond the end", "", v1 + `"rv":$N,"start":"/zzz"}`, 200, cache, nil, ""},
				{"of before the proxy followed", "", v1 + `"rv":$OLD,"start":"/!"}`, 200, upstream, nil, ""},
				{"of any resourceVersion", "limit=1&", v1 + `"rv":-1,"start":"` + start + `"}`, 200, ifCached, rest, ""},
				{"of any resourceVersion, without the slash", "limit=1&", v1 + `"rv":-1,"start":"` + bare + `"}`, 200, ifCached, rest, ""},
				{"of any resourceVersion, by label", "limit=1&labelSelector=app%3Dweb&", v1 + `"rv":-1,"start":"/!"}`, 200, ifCached, rest, ""},
				{"of any resourceVersion, to the end", "", v1 + `"rv":-7,"start":"` + start + `\u0000"}`, 200, ifCached, rest, ""},
				{"of no resourceVersion", "", v1 + `"start":"/x"}`, 400, upstream, nil, "incorrect encoded start resourceVersion (version meta.k8s.io/v1)"},
				{"of resourceVersion 0", "", v1 + `"rv":0,"start":"/x"}`, 400, upstream, nil, "incorrect encoded start resourceVersion (version meta.k8s.io/v1)"},
				{"of no start", "", v1 + `"rv":$N}`, 400, upstream, nil, "encoded start key empty (version meta.k8s.io/v1)"},
				{"of another version", "", `{"v":"v2","rv":$N,"start":"/x"}`, 400, upstream, nil, "does not recognize this encoded version v2"},
				{"that leaves the prefix", "", v1 + `"rv":$N,"start":"/../secrets/a"}`, 400, upstream, nil, "continue key is not valid: "},
				{"with a doubled slash", "", v1 + `"rv":$N,"start":"//x"}`, 400, upstream, nil, "continue key is not valid: "},
				{"that ends with a slash", "limit=2&", v1 + `"rv":$N,"start":"/a/"}`, 400, upstream, nil, "continue key is not valid: "},
				{"that is no JSON", "", "x", 400, upstream, nil, "continue key is not valid: "},
				{"with another member", "", v1 + `"rv":$N,"start":"/a","more":1}`, 200, cache, nil, ""},
				{"with members in other letters", "", `{"V":"meta.k8s.io/v1","RV":$N,"Start":"/a"}`, 200, cache, nil, ""},
				{"with a resourceVersion", "resourceVersion=$N&", v1 + `"rv":$N,"start":"/x"}`, 400, upstream, nil, "specifying resource version is not allowed when using continue"},
				{"with resourceVersion 0 and a limit", "resourceVersion=0&limit=1&", v1 + `"rv":$N,"start":"/!"}`, 200, upstream, nil, ""},
				{"with resourceVersion 0", "resourceVersion=0&", v1 + `"rv":$N,"start":"/!"}`, 200, upstream, nil, ""},
				{"of any resourceVersion, with resourceVersion 0", "resourceVersion=0&limit=1&", v1 + `"rv":-1,"start":"/!"}`, 200, upstream, rest, ""},
				{"with a match", "resourceVersionMatch=NotOlderThan&resourceVersion=$N&", v1 + `"rv":$N,"start":"/x"}`, 422, upstream, nil, "resourceVersionMatch is forbidden when continue is provided"},
				{"of what is as old as can be", "", v1 + `"rv":1,"start":"/!"}`, 200, upstream, nil, ""},
			} {
				target := c.expand(c.all() + "?" + f.query + "continue=" + token(c.expand(f.token)))
				r := row{name: f.name, request: get(target), status: f.status, from: c.source(f.from), open: f.open, says: f.says}
				if r.open == nil {
					r.open = c.exact()
				}
				rows = append(rows, r)
			}
			check(t, rows)
		})
	}
}

// In a namespace, the key in a token is relative to the namespace.
func TestContinueTokensInNamespaces(t *testing.T) {
	in := func(path, query, plain string) request {
		return get(path + "?" + query + "continue=" + token(`{"v":"meta.k8s.io/v1",`+configMaps.expand(plain)+"}"))
	}
	many, all := configMaps.in("many"), configMaps.all()
	check(t, []row{
		{name: "after one", request: in(many, "limit=2&", `"rv":$N,"start":"/c-100\u0000"`), status: 200, from: cache, open: ExactPage},
		{name: "before its first", request: in(many, "limit=2&", `"rv":$N,"start":"/!"`), status: 200, from: cache, open: ExactPage},
		{name: "with a slash inside", request: in(many, "limit=2&", `"rv":$N,"start":"/c-1/x"`), status: 200, from: cache, open: ExactPage},
		{name: "that leaves the namespace", request: in(many, "", `"rv":$N,"start":"/../a/x"`), status: 400, from: upstream},
		{name: "of any resourceVersion", request: in(many, "limit=3&", `"rv":-1,"start":"/c-100\u0000"`), status: 200, from: cache, open: SomeState(configMaps.now)},
		{name: "of any resourceVersion, by label", request: in(many, "limit=3&labelSelector=parity%3Dodd&", `"rv":-1,"start":"/c-100\u0000"`), status: 200, from: cache, open: SomeState(configMaps.now)},
		{name: "of one by name", request: in(all, "fieldSelector=metadata.name%3Dx,metadata.namespace%3Da&", `"rv":$N,"start":"/a/w"`), status: 200, from: upstream},
		{name: "of one by name in a namespace", request: in(configMaps.in("a"), "fieldSelector=metadata.name%3Dx&", `"rv":$N,"start":"/w"`), status: 200, from: upstream},
		{name: "that is no base64", request: get(all + "?continue=%25%25"), status: 400, from: upstream},
		{name: "with padding", request: get(all + "?continue=" + token(`{"v":"meta.k8s.io/v1","rv":1,"start":"/a/x"}`) + "%3D"), status: 400, from: upstream},
		{name: "empty", request: get(configMaps.expand(all + "?resourceVersion=$N&continue=")), status: 200, from: cache, open: SomeState(configMaps.now)},
	})
}
