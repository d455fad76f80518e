package conformance

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/watchproxy/watchproxy/bench/cluster"
)

// The cache answers a request if it has one of the accepted forms, whichever other forms the
// request accepts. Requests for other forms are forwarded. The lists are exact, so that responses
// in all forms can be compared.
func TestNegotiation(t *testing.T) {
	const (
		table   = "application/json;as=Table;v=v1;g=meta.k8s.io"
		partial = "application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io"
		one     = "application/json;as=PartialObjectMetadata;v=v1;g=meta.k8s.io"
	)
	for _, c := range []*collection{configMaps, widgets} {
		t.Run(c.name, func(t *testing.T) {
			list := get(c.expand(c.in("a-b") + "?resourceVersion=$N&resourceVersionMatch=Exact"))
			object := get(c.expand(c.in("a") + "/$NAME?resourceVersion=0"))
			var rows []row
			protobuf, protobufFrom, anything := 406, upstream, 200
			if c == configMaps {
				protobuf, protobufFrom, anything = 200, cache, 406
			}
			for _, f := range []struct {
				accept string
				status int
				from   source
			}{
				{"", 200, cache},
				{"application/json", 200, cache},
				{"*/*", 200, cache},
				{"application/json, */*", 200, cache},
				{"application/json;charset=utf-8", 200, cache},
				{"application/json;drop=metadata.managedFields", 200, upstream},
				{"application/json, text/plain", 200, cache},
				{"application/json;q=0.9, */*;q=0.8", 200, cache},
				{"application/json;q=1.0", 200, cache},
				{"application/json;q=0", 200, cache},
				{"application/json;q=2", 200, cache},
				{"application/json;q=x", 200, cache},
				{"Application/JSON", 406, upstream},
				{"*/*, application/yaml", 200, upstream},
				{"*/*;q=1, application/yaml;q=0.5", 200, upstream},
				{"application/yaml, application/json", 200, upstream},
				{"application/json;q=0.5, application/yaml", 200, upstream},
				{"application/json, application/yaml;q=0.5", 200, cache},
				{"application/yaml", 200, upstream},
				{"application/vnd.kubernetes.protobuf", protobuf, protobufFrom},
				{"application/vnd.kubernetes.protobuf, application/json", 200, cache},
				{"application/json, application/vnd.kubernetes.protobuf", 200, cache},
				{"application/cbor", 406, upstream},
				{"application/cbor, application/json", 200, upstream},
				{"application/*", anything, upstream},
				{"text/html", 406, upstream},
				{"text/html, application/xhtml+xml, application/xml;q=0.9, */*;q=0.8", 200, cache},
				{"garbage", 406, upstream},
				{"garbage, application/json", 200, cache},
				{";;;", 406, upstream},
				{",", 406, upstream},
				{", application/json", 200, cache},
				{"application/json;", 200, cache},
				{"application/json;pretty=1", 200, upstream},
				{"application/json;stream=watch", 200, cache},
				{"application/json;as=Nonsense;v=v1;g=meta.k8s.io", 406, upstream},
				{"application/json;as=Nonsense;v=v1;g=meta.k8s.io, application/json", 200, cache},
				{"application/json;unknown=1", 200, upstream},
				{strings.Repeat("text/x, ", 20) + "application/yaml, application/json", 200, upstream},
				{"application/json, " + strings.Repeat("application/yaml, ", 20) + "text/x", 200, upstream},
			} {
				rows = append(rows,
					row{name: "list as " + f.accept, request: list.With("Accept", f.accept), status: f.status, from: f.from},
					row{name: "get as " + f.accept, request: object.With("Accept", f.accept), status: f.status, from: f.from},
				)
			}
			check(t, append(rows, []row{
				{name: "two Accept headers", request: list.With("Accept", "application/json").With("Accept", "application/yaml"), status: 200, from: cache},
				{name: "two Accept headers, the other way round", request: list.With("Accept", "application/yaml").With("Accept", "application/json"), status: 200, from: upstream},
				{name: "Table of a list", request: list.With("Accept", table), status: 200, from: cache, moving: true},
				{name: "Table of an object", request: object.With("Accept", table), status: 200, from: cache, moving: true},
				{name: "Table or JSON", request: list.With("Accept", table+",application/json"), status: 200, from: cache, moving: true},
				{name: "Table with objects", request: get(list.Target+"&includeObject=Object").With("Accept", table), status: 200, from: cache, moving: true},
				{name: "Table of an error", request: get(c.in("a-b")+"/nobody?resourceVersion=0").With("Accept", table), status: 404, from: cache},
				{name: "metadata of a list", request: list.With("Accept", partial), status: 200, from: cache},
				{name: "metadata of an empty list", request: get(c.expand(c.in("nobody")+"?resourceVersion=$N&resourceVersionMatch=Exact")).With("Accept", partial), status: 200, from: cache, says: `"items":null`},
				{name: "metadata of an object", request: object.With("Accept", one), status: 200, from: cache},
				{name: "metadata as protobuf", request: list.With("Accept", strings.Replace(partial, "json", "vnd.kubernetes.protobuf", 1)), status: 200, from: cache},
				{name: "metadata of one asked of a list", request: list.With("Accept", one), status: 406, from: upstream},
				{name: "YAML of an error", request: get(c.in("a-b")+"/nobody?resourceVersion=0").With("Accept", "application/yaml"), status: 404, from: upstream},
				{name: "JSON of an error", request: get(c.in("a-b")+"/nobody?resourceVersion=0").With("Accept", "application/json"), status: 404, from: cache},
			}...))
		})
	}
}

// Browsers and terminals get indented JSON, from upstream.
func TestPretty(t *testing.T) {
	for _, c := range []*collection{configMaps, planets} {
		t.Run(c.name, func(t *testing.T) {
			list := c.expand(c.in("a-b") + "?resourceVersion=$N&resourceVersionMatch=Exact")
			object := c.expand(c.in("a") + "/$NAME?resourceVersion=0")
			var rows []row
			for _, target := range []string{list, object} {
				for _, f := range []struct {
					query, agent string
					from         source
				}{
					{"&pretty=true", "", upstream},
					{"&pretty=1", "", upstream},
					{"&pretty=false", "", cache},
					{"&pretty=0", "", cache},
					{"&pretty=", "", cache},
					{"&pretty", "", cache},
					{"&pretty=FALSE", "", cache},
					{"&pretty=fAlSe", "", cache},
					{"&pretty=f", "", cache},
					{"&pretty=nonsense", "", cache},
					{"&pretty=true&pretty=false", "", upstream},
					{"&pretty=false&pretty=true", "", cache},
					{"", "curl/8.5.0", upstream},
					{"", "Wget/1.21", upstream},
					{"", "Mozilla/5.0 (X11)", upstream},
					{"", "Mozilla/4.0", cache},
					{"", "libcurl", cache},
					{"&pretty=false", "curl/8.5.0", cache},
					{"&pretty=", "curl/8.5.0", upstream},
				} {
					r := get(target + f.query)
					if f.agent != "" {
						r = r.With("User-Agent", f.agent)
					}
					rows = append(rows, row{name: target + f.query + " " + f.agent, request: r, status: 200, from: f.from})
				}
			}
			check(t, rows)
		})
	}
}

func pick[T any](r *rand.Rand, from []T) T { return from[r.IntN(len(from))] }

// acceptWords are parts from which random Accept headers are built.
var acceptWords = struct{ types, params []string }{
	[]string{
		"application/json", "application/yaml", "application/vnd.kubernetes.protobuf", "*/*", "application/*", "text/html", "*", "application/cbor", "json", "",
	},
	[]string{
		"as=Table;g=meta.k8s.io;v=v1", "as=PartialObjectMetadataList;g=meta.k8s.io;v=v1", "as=PartialObjectMetadata;g=meta.k8s.io;v=v1",
		"as=PartialObjectMetadataList;g=meta.k8s.io;v=v1beta1", "as=PartialObjectMetadata;g=meta.k8s.io", "as=Nonsense;g=meta.k8s.io;v=v1", "v=v1", "g=", "as=",
		"q=0.5", "q=0", "q=1", "q=0.9", "q=x", "q=NaN", "stream=watch", "stream=other", "stream=", "pretty=1", "pretty=0", "charset=utf-8", "profile=x", "unknown", "sv=v1", " q=0.7",
	},
}

// Whatever a client accepts, the proxy sends the same form as the apiserver, for an object, a list,
// a watch and an error.
func TestNegotiationAtRandom(t *testing.T) {
	const headers = 150
	r := rand.New(rand.NewPCG(cluster.Seed(), 0))
	var rows []row
	for range headers {
		var clauses []string
		for range 1 + r.IntN(4) {
			clause := pick(r, acceptWords.types)
			for range r.IntN(3) {
				clause += ";" + pick(r, acceptWords.params)
			}
			clauses = append(clauses, clause)
		}
		accept := strings.Join(clauses, pick(r, []string{",", ", ", " , "}))
		c := []*collection{configMaps, widgets, nodes}[r.IntN(3)]
		for _, target := range []string{
			"?resourceVersion=$N&resourceVersionMatch=Exact", "/$NAME?resourceVersion=0", "/nobody?resourceVersion=0",
			"?watch=true&resourceVersion=0&timeoutSeconds=1&fieldSelector=metadata.name%3D$NAME",
		} {
			if strings.Contains(target, "watch") && r.IntN(10) > 0 {
				continue // each of them takes a second
			}
			asked := get(c.expand(c.in("a")+target)).With("Accept", accept)
			rows = append(rows, row{name: fmt.Sprintf("%s as %q", asked.Target, accept), request: asked, from: anywhere, open: same})
		}
	}
	checkAsIs(t, rows)
}
