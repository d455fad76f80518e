package conformance

import (
	"fmt"
	"math/rand/v2"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// A long list in any form is compressed if the client accepts gzip. The compressed list has the
// apiserver's content and is no larger.
func TestCompressedLists(t *testing.T) {
	needsWhole(t)
	homes := newNamespaces(t, "compressed", 2)
	// The apiserver may end watches of widgets if there are many events at once. The proxy then reads
	// the rows of Tables again, and forgets earlier rows, which other tests list.
	custom := newGadgets(t, version("v1", true, ""))
	for _, tc := range []struct {
		of     *collection
		n      int
		fields func(i int) map[string]any
	}{
		{accounts, 900, func(int) map[string]any { return nil }},
		{templates, 150, func(i int) map[string]any { return map[string]any{"template": podTemplate(i)} }},
		{&custom.collection, 500, func(i int) map[string]any { return map[string]any{"spec": map[string]any{"color": fmt.Sprint("c", i)}} }},
	} {
		t.Run(tc.of.name, func(t *testing.T) {
			if err := tc.of.follow(t.Context()); err != nil {
				t.Fatal(err)
			}
			if err := createMany(t.Context(), tc.n, func(i int) object {
				return object{of: tc.of, namespace: homes[i%2], name: fmt.Sprintf("o-%04d", i), meta: labelled("half", strconv.Itoa(i%2), "id", uuid(i)), fields: tc.fields(i)}
			}); err != nil {
				t.Fatal(err)
			}
			at := revision(t, must(t, proxied, get(tc.of.all()+"?limit=1"), http.StatusOK))
			catchUp(t, tc.of, at)
			exact := fmt.Sprintf("resourceVersion=%d&resourceVersionMatch=Exact", at)
			for _, path := range []string{
				tc.of.all() + "?" + exact, tc.of.in(homes[0]) + "?" + exact,
				tc.of.all() + "?limit=" + strconv.Itoa(tc.n*3/4) + "&" + exact, tc.of.all() + "?labelSelector=half%3D1&" + exact,
			} {
				compressed(t, path)
			}
		})
	}
}

var compressedForms = slices.DeleteFunc(slices.Clone(forms), func(f form) bool { return !f.gzip || f.name == "YAML" || f.name == "indented" })

// compressed requests a list in the forms whose compressed pages the proxy keeps.
func compressed(t *testing.T, path string) {
	t.Helper()
	for _, f := range lots(path, compressedForms) {
		r, _ := f.of(get(path))
		row{name: path + ", " + f.String(), request: r, status: 200, from: cache}.run(t)
	}
}

func uuid(i int) string {
	r := rand.New(rand.NewPCG(uint64(i), 0))
	return fmt.Sprintf("%08x-%04x-%04x", r.Uint32(), r.Uint32()>>16, r.Uint32()>>16)
}

func podTemplate(i int) map[string]any {
	var env []any
	for k := range 40 {
		env = append(env, map[string]any{"name": fmt.Sprintf("VARIABLE_%02d", k), "value": uuid(i*100 + k)})
	}
	return map[string]any{"metadata": labelled("app", fmt.Sprint("app-", i%7)), "spec": map[string]any{"containers": []any{
		map[string]any{"name": "main", "image": "registry.example.com/team/app:v1." + strconv.Itoa(i), "env": env},
	}}}
}

// A list is compressed if it reaches the threshold. A shorter list is not.
func TestCompressionThreshold(t *testing.T) {
	const threshold = 128 << 10
	home := newNamespaces(t, "threshold", 1)[0]
	create := func(name string, size int) int {
		o := object{of: configMaps, namespace: home, name: name, fields: data("k", strings.Repeat("x", size))}
		o.createT(t)
		return len(must(t, apiserver, get(o.path()), 200).Body)
	}
	size := threshold - (create("c-0", 1000) - 1000)
	for i, from := 1, -2; from <= 2; i++ {
		name := fmt.Sprint("c-", i)
		if off := create(name, size+from) - threshold - from; off == 0 {
			from++
		} else {
			size -= off // the resourceVersion has another digit now, or the name has
		}
		catchUp(t, configMaps, revision(t, must(t, apiserver, get(configMaps.all()+"?limit=1"), 200)))
		for _, accept := range []string{"gzip", "deflate, gzip", "gzip;q=1.0", "*", "br, zstd"} {
			r := get(configMaps.in(home)+"/"+name+"?resourceVersion=0").With("Accept-Encoding", accept)
			row{name: name + " with " + accept, request: r, status: 200, from: cache}.run(t)
		}
		for _, form := range lots(name, compressedForms) {
			if r, ok := form.of(get(configMaps.in(home) + "?resourceVersion=0&fieldSelector=metadata.name%3D" + name)); ok {
				row{name: "list of " + name + " " + form.String(), request: r, status: 200, from: cache, open: SomeState(1)}.run(t)
			}
		}
	}
}

// The proxy compresses the watches that the apiserver compresses. Versions before 1.37 compress none.
func TestWatchEncoding(t *testing.T) {
	const begin = "sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true"
	var rows []row
	for _, query := range []string{
		begin, begin + "&resourceVersion=0", begin + "&labelSelector=app%3Dweb", strings.Replace(begin, "=true", "=false", 1),
		"resourceVersion=0", "resourceVersion=0&allowWatchBookmarks=true", "allowWatchBookmarks=true", "resourceVersion=$N&allowWatchBookmarks=true",
	} {
		for _, accepts := range []string{"gzip", "deflate, gzip", "gzip;q=1.0", "*", "br"} {
			for _, accept := range kept {
				r := get(pods.expand(pods.all()+"?watch=true&timeoutSeconds=1&"+query)).With("Accept-Encoding", accepts).With("Accept", accept)
				rows = append(rows, row{name: query + ", " + accepts + " as " + accept, request: r, from: anywhere, moving: true})
			}
		}
	}
	checkAsIs(t, rows)
}
