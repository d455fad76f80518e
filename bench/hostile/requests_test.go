package hostile

import (
	"bytes"
	"fmt"
	"net/http"
	"strings"
)

// requests are complete requests for objects that do not exist, or in forms that no client needs.
func requests() []behaviour {
	row := func(name string, rate int, do func(*attack, int)) behaviour {
		return behaviour{name: "requests: " + name, clients: 8, most: 32, rate: rate, do: do}
	}
	get := func(target func(i int64) string, fields ...string) func(*attack, int) {
		return gets(http2Protocol, target, fields...)
	}
	always := func(target string) func(int64) string { return func(int64) string { return target } }
	unreads := func(protocol string, fields ...string) func(*attack, int) {
		return func(a *attack, _ int) {
			c := a.client(protocol)
			for a.turn() {
				if resp := a.send(c, http.MethodGet, cachedList, asAttacker(fields...), nil); resp != nil {
					resp.Body.Close()
				}
			}
		}
	}
	// The apiserver builds each of these bodies completely, which needs a hundred times its size in
	// memory. In a long run, more clients would measure the apiserver instead of the proxy.
	fewer := func(b behaviour) behaviour {
		b.most = b.clients
		return b
	}
	clauses := func(n int, text string) string { return strings.TrimSuffix(strings.Repeat(text, n), ",") }
	const yaml = "application/yaml"
	const partial = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"
	return []behaviour{
		row("Accept of 2,000 clauses", 100, get(always(oneRow), "Accept", clauses(2000, "a/b;q=0.1;as=x,"))),
		row("Accept of 60 KiB of parameters", 100, get(always(oneRow), "Accept", "application/json"+clauses(15_000, ";a=b"))),
		row("Accept-Encoding of 5,000 codings", 100, get(always(oneRow), "Accept-Encoding", clauses(5000, "gzip;q=0,"))),
		row("5,000 query parameters", 100, get(always(oneRow+clauses(5000, "&a=b")))),
		row("a query parameter with a new name each time", 200, get(func(i int64) string { return fmt.Sprintf("%s&%s=1", oneRow, made(i)) })),
		row("made-up resources", 200, get(func(i int64) string { return "/api/v1/" + made(i) + "?resourceVersion=0" })),
		row("made-up resources of 16 KB", 100, get(func(i int64) string { return "/api/v1/" + made(i) + strings.Repeat("x", 16<<10) })),
		row("made-up groups", 200, get(func(i int64) string { return "/apis/" + made(i) + ".example/v1/things?resourceVersion=0" })),
		row("made-up versions", 200, get(func(i int64) string { return "/apis/apps/" + made(i) + "/deployments?watch=true" })),
		row("made-up namespaces", 200, get(func(i int64) string { return "/api/v1/namespaces/" + made(i) + "/pods?resourceVersion=0" })),
		row("made-up subresources and names", 200, get(func(i int64) string { return attackedPodsPath + "/" + made(i) + "/" + made(i+1) })),
		row("made-up methods", 200, each(http2Protocol, func(_ *attack, i int64) (string, string, http.Header) {
			return strings.ToUpper(strings.ReplaceAll(made(i), "-", "")), oneRow, asAttacker()
		})),
		row("made-up paths", 200, get(func(i int64) string {
			return []string{"/" + made(i), "/openapi/v3/" + made(i), "/api/v1/../" + made(i), "/api//v1/%2e%2e/" + made(i), "/healthz/" + made(i)}[i%5]
		})),
		row("OpenAPI in made-up forms", 20, each(http2Protocol, func(_ *attack, i int64) (string, string, http.Header) {
			return http.MethodGet, "/openapi/v2", asAttacker("Accept", "application/json;x="+made(i))
		})),
		row("made-up user agents", 200, each(http2Protocol, func(_ *attack, i int64) (string, string, http.Header) {
			return http.MethodGet, oneRow, asAttacker("User-Agent", made(i)+strings.Repeat("x", 4<<10))
		})),
		row("made-up continue tokens", 200, get(func(i int64) string {
			return attackedPodsPath + "?limit=10&continue=" + made(i) + strings.Repeat("eyJ2IjoibWV0YS5rOHMuaW8vdjEi", int(i%500))
		})),
		row("invalid limits", 200, get(func(i int64) string {
			return attackedPodsPath + "?resourceVersion=0&limit=" + []string{"-1", "99999999999999999999", "0x10", "9223372036854775807"}[i%4]
		})),
		row("invalid resourceVersions", 200, get(func(i int64) string {
			rv := []string{"-1", "18446744073709551616", "9223372036854775807", "a", "1.5"}[i%5]
			return attackedPodsPath + "?timeoutSeconds=1&resourceVersion=" + rv + []string{"", "&watch=true", "&resourceVersionMatch=Exact&limit=1"}[i%3]
		})),
		fewer(row("whole lists as YAML", 10, get(always(cachedList), "Accept", yaml))),
		fewer(row("whole lists as Tables", 20, get(always(cachedList), "Accept", table))),
		row("whole lists as metadata, compressed", 20, get(always(cachedList), "Accept", partial, "Accept-Encoding", "gzip")),
		row("whole lists, compressed, in orders of their own", 20, get(func(i int64) string {
			return fmt.Sprintf("%s&labelSelector=none%%21%%3D%s", cachedList, made(i))
		}, "Accept-Encoding", "gzip")),
		row("pages of one", 500, get(func(int64) string { return attackedPodsPath + "?limit=1" })),
		row("lists reset before they are read", 50, unreads(http2Protocol, "Accept-Encoding", "gzip")),
		fewer(row("YAML reset before it is read", 20, unreads(http2Protocol, "Accept", yaml))),
		fewer(row("Tables reset before they are read", 20, unreads(http1, "Accept", table))),
		row("posts of 3 MiB", 20, posts(3<<20)),
		row("posts of 4 MiB, which is too much", 20, posts(4<<20)),
		row("posts to what is read only", 100, each(http2Protocol, func(_ *attack, i int64) (string, string, http.Header) {
			return []string{http.MethodPost, http.MethodPut, http.MethodPatch, http.MethodDelete}[i%4], deniedPodsPath + "/" + made(i),
				asAttacker("Content-Type", "application/json")
		})),
	}
}

// posts sends bodies that upstream will refuse.
func posts(size int) func(*attack, int) {
	body := bytes.Repeat([]byte(" "), size)
	return func(a *attack, _ int) {
		c := a.client(http2Protocol)
		for a.turn() {
			a.ask(c, http.MethodPost, attackedConfigMaps, asAttacker("Content-Type", "application/json"), bytes.NewReader(body))
		}
	}
}

// selectors are selectors that are large, or expensive to apply.
func selectors() []behaviour {
	row := func(name string, rate int, do func(*attack, int)) behaviour {
		return behaviour{name: "selectors: " + name, clients: 8, most: 32, rate: rate, do: do}
	}
	many := func(n int, one func(i int) string) string {
		all := make([]string, n)
		for i := range all {
			all[i] = one(i)
		}
		return strings.Join(all, "%2C")
	}
	set := "none%20notin%20(" + many(4000, func(i int) string { return fmt.Sprintf("value-%d", i) }) + ")"
	requirements := many(1500, func(i int) string { return fmt.Sprintf("none-%d%%21%%3Dx", i) })
	fields := many(1500, func(i int) string { return fmt.Sprintf("metadata.name%%21%%3Dn-%d", i) })
	of := func(path, selector string) func(*attack, int) {
		return gets(http2Protocol, func(i int64) string { return fmt.Sprintf("%s%s%%2Cown%%21%%3D%s", path, selector, made(i)) })
	}
	const list, watch, denied = cachedList + "&labelSelector=", cachedWatch + "&labelSelector=", deniedPodsPath + "?resourceVersion=0&labelSelector="
	opened := func(path string) func(*attack, int) {
		return streams(20, nil, func(f *frames, _ int) bool {
			_, ok := f.get(path+"%2Cown%21%3D"+made(f.a.next.Add(1)), asAttacker())
			return ok
		})
	}
	return []behaviour{
		row("a set of 4,000 values, lists", 20, of(list, set)),
		row("1,500 requirements, lists", 10, of(list, requirements)),
		row("1,500 field requirements, lists", 10, gets(http2Protocol, func(int64) string { return cachedList + "&fieldSelector=" + fields })),
		row("fields that upstream does not know", 100, gets(http2Protocol, func(i int64) string { return cachedList + "&fieldSelector=spec." + made(i) + "%3Da" })),
		row("broken", 200, gets(http2Protocol, func(i int64) string {
			return list + []string{"((((", "a%20in%20(", "%00", "a%3D%3D%3Db", ",,,,"}[i%5] + made(i)
		})),
		row("1,500 requirements, denied lists", 40, of(denied, requirements)),
		row("a set of 4,000 values, denied lists", 40, of(denied, set)),
		row("a set of 4,000 values, watches", 50, opened(watch+set)),
		row("1,500 requirements, watches", 50, opened(watch+requirements)),
		{
			name: "selectors: 1,500 requirements, watches while pods are written", clients: 8, most: 16, rate: 200, do: opened(watch + requirements),
			beside: writePods,
		},
		{
			name: "selectors: 31 requirements, watches of an object with 20,000 labels", clients: 8, most: 16, rate: 200, beside: writeLabels,
			do: opened(attackedConfigMaps + "?watch=true&resourceVersion=0&timeoutSeconds=600&labelSelector=" +
				many(30, func(i int) string { return fmt.Sprintf("none-%d%%21%%3Dx", i) }) + "%2Czero%3Dx"), // the last one matches nothing
		},
	}
}
