package conformance

import (
	"fmt"
	"strings"
	"testing"
)

func TestParameters(t *testing.T) {
	for _, c := range []*collection{configMaps, widgets, coreEvents} {
		t.Run(c.name, func(t *testing.T) {
			var rows []row
			for _, f := range []struct {
				query  string
				status int
				from   source
				says   string
			}{
				{"resourceVersion=abc", 400, upstream, `strconv.ParseUint: parsing \"abc\": invalid syntax`},
				{"resourceVersion=-1", 400, upstream, ""},
				{"resourceVersion=%2B1", 400, upstream, ""},
				{"resourceVersion=007", 200, upstream, ""},
				{"resourceVersion=00", 200, upstream, ""},
				{"resourceVersion=1.0", 400, upstream, ""},
				{"resourceVersion=0x10", 400, upstream, ""},
				{"resourceVersion=+1", 400, upstream, ""},
				{"resourceVersion=1_0", 400, upstream, ""},
				{"resourceVersion=18446744073709551616", 400, upstream, ""},
				{"resourceVersion=&resourceVersion=0", 200, ifCached, ""},
				{"resourceVersion=0&resourceVersion=abc", 200, cache, ""},
				{"ResourceVersion=0", 200, upstream, ""},
				{"resourceVersion=0&resourceVersionMatch=Exact", 422, upstream, `resourceVersionMatch \"exact\" is forbidden for resourceVersion \"0\"`},
				{"resourceVersion=0&resourceVersionMatch=exact", 422, upstream, `Unsupported value: \"exact\": supported values: \"Exact\", \"NotOlderThan\", \"\"`},
				{"resourceVersion=0&resourceVersionMatch=Exact&sendInitialEvents=true", 422, upstream, "is invalid: ["},
				{"resourceVersion=0&resourceVersionMatch=", 200, cache, ""},
				{"resourceVersion=$N&resourceVersionMatch=NotOlderThan&resourceVersionMatch=Exact", 200, cache, ""},
				{"resourceVersionMatch=NotOlderThan", 422, upstream, "forbidden unless resourceVersion is provided"},
				{"resourceVersionMatch=Exact", 422, upstream, ""},
				{"resourceVersion=0&sendInitialEvents=true", 422, upstream, "sendInitialEvents is forbidden for list"},
				{"resourceVersion=0&sendInitialEvents=false", 422, upstream, ""},
				{"resourceVersion=0&limit=-1", 200, cache, ""},
				{"resourceVersion=$N&limit=-5", 200, cache, ""},
				{"resourceVersion=$N&limit=0", 200, cache, ""},
				{"resourceVersion=$N&limit=", 400, upstream, ""},
				{"resourceVersion=$N&limit=x", 400, upstream, `strconv.ParseInt: parsing \"x\": invalid syntax`},
				{"resourceVersion=$N&limit=1.5", 400, upstream, ""},
				{"resourceVersion=$N&limit=9223372036854775807", 200, cache, ""},
				{"resourceVersion=$N&limit=9223372036854775808", 400, upstream, ""},
				{"resourceVersion=$N&limit=%2B2", 200, cache, ""},
				{"resourceVersion=$N&limit=2&limit=x", 200, cache, ""},
				{"resourceVersion=0&timeoutSeconds=5", 200, cache, ""},
				{"resourceVersion=0&timeoutSeconds=x", 400, upstream, ""},
				{"resourceVersion=0&timeoutSeconds=-5", 200, upstream, ""},
				{"resourceVersion=0&timeoutSeconds=9223372037", 200, upstream, ""}, // as a duration it is negative
				{"resourceVersion=0&allowWatchBookmarks=true", 200, cache, ""},
				{"resourceVersion=0&allowWatchBookmarks=nonsense", 200, cache, ""},
				{"resourceVersion=0&timeout=10s", 200, cache, ""},
				{"resourceVersion=0&timeout=nonsense", 400, upstream, ""},
				{"resourceVersion=0&timeout=", 200, cache, ""},
				{"resourceVersion=0&timeout=0s", 200, cache, ""},
				{"resourceVersion=0&timeout=-1s", 200, cache, ""},
				{"resourceVersion=0&watch=false", 200, cache, ""},
				{"resourceVersion=0&watch=0", 200, cache, ""},
				{"resourceVersion=0&watch=False", 200, cache, ""},
				{"resourceVersion=0&watch=false&watch=true", 200, cache, ""},
				{"resourceVersion=0&unknown=1", 200, upstream, ""},
				{"resourceVersion=0&dryRun=All", 200, upstream, ""},
				{"resourceVersion=0&shardSelector=x", 200, upstream, ""},
				{"resourceVersion=0&labelSelector=app%3Dweb&labelSelector=!!", 200, cache, ""},
				{"resourceVersion=0&fieldSelector=metadata.name%3Dx&fieldSelector=y", 200, cache, ""},
				{"resourceVersion=0&", 200, cache, ""},
				{"&&resourceVersion=0", 200, cache, ""},
				{"resourceVersion=0;limit=1", 200, upstream, ""},
				{"resourceVersion=0&limit=%zz", 200, upstream, ""},
				{"resourceVersion=0&=", 200, upstream, ""},
				{"resourceVersion=%30", 200, cache, ""},
				{"resource%56ersion=0", 200, cache, ""},
				{"resourceVersion=0?limit=1", 400, upstream, ""},
				{"resourceVersion=0&continue=", 200, cache, ""},
			} {
				target := c.expand(c.in("a-b") + "?" + f.query)
				rows = append(rows, row{name: target, request: get(target), status: f.status, from: c.source(f.from), says: f.says, open: SomeState(0)})
			}
			check(t, rows)
		})
	}
}

func TestHeaders(t *testing.T) {
	list := get(configMaps.expand(configMaps.in("a") + "?resourceVersion=$N&resourceVersionMatch=Exact"))
	object := get(configMaps.in("a") + "/plain?resourceVersion=0")
	nobody := get(configMaps.in("a") + "/nobody?resourceVersion=0")
	reviewer := source("proxy") // a proxy that authenticates asks for a review, and answers itself
	if *rights == "" {          // otherwise these requests are answered differently, too
		own := cache
		if *tiers > 1 {
			own = upstream // the last proxy has no token
		}
		reviewer = upstream
		check(t, []row{
			{name: "identity of the proxy itself", request: list.With("Authorization", "Bearer "+apiserver.Token), status: 200, from: own},
			{name: "identity of nobody", request: list.With("Authorization", "Bearer nonsense"), status: 401, from: upstream},
			{name: "identity that is malformed", request: list.With("Authorization", "nonsense"), status: 403, from: upstream},
		})
	}
	check(t, []row{
		{name: "impersonation", request: list.With("Impersonate-User", "nobody"), status: 403, from: reviewer},
		{name: "impersonation that is malformed", request: list.With("Impersonate-Group", "nobody"), status: 400, from: upstream},
		{name: "conditions mean nothing", request: object.With("If-None-Match", "*").With("If-Modified-Since", "Sat, 01 Jan 2050 00:00:00 GMT"), status: 200, from: cache},
		{name: "ranges mean nothing", request: object.With("Range", "bytes=0-9"), status: 200, from: cache},
		{name: "a page's origin, for which upstream may add headers", request: object.With("Origin", "http://localhost").With("Sec-Fetch-Site", "same-origin"), status: 200, from: upstream},
		{name: "a content type means nothing", request: object.With("Content-Type", "application/yaml"), status: 200, from: cache},
		{name: "tracing means nothing", request: object.With("Traceparent", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"), status: 200, from: cache},
	})
	for _, f := range []struct {
		name    string
		request request
		from    source
	}{
		{"list", list, cache}, {"get", object, cache}, {"not found", nobody, cache}, {"forwarded", get(configMaps.in("a") + "/plain"), upstream},
	} {
		for _, id := range []string{"mine", "an id with spaces", "üñí", "", strings.Repeat("long", 100)} {
			t.Run("Audit-Id of "+f.name+" "+id[:min(len(id), 20)], func(t *testing.T) {
				want, got, err := row{request: f.request.With("Audit-Id", id)}.ask(t.Context())
				if err != nil {
					t.Fatal(err)
				}
				if w, g := want.Header.Values("Audit-Id"), got.Header.Values("Audit-Id"); len(w) != len(g) || id != "" && w[0] != g[0] {
					t.Errorf("%q instead of %q", g, w)
				}
			})
		}
	}
}

// A long list of values fits into a request.
func TestLongRequest(t *testing.T) {
	values := strings.Repeat("a-value-that-nobody-has,", 2000) + "web"
	fewer := strings.Repeat("a-value-that-nobody-has,", 900) + "web"
	selecting := func(values string) request {
		return get(pods.expand(pods.all() + "?resourceVersion=$N&resourceVersionMatch=Exact&labelSelector=app+in+(" + values + ")"))
	}
	many := get(pods.in("a") + "/web-1?resourceVersion=0")
	for i := range 100 {
		many = many.With(fmt.Sprintf("X-Header-%d", i), strings.Repeat("y", 100))
	}
	check(t, []row{
		{name: "selector", request: selecting(fewer), status: 200, from: cache},
		{name: "selector of more terms than are kept", request: selecting(values), status: 200, from: upstream},
		{name: "header", request: get(pods.in("a")+"/web-1?resourceVersion=0").With("X-Long", values), status: 200, from: cache},
		{name: "a hundred headers", request: many, status: 200, from: cache},
	})
}
