//go:build verify

package conformance

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/tidwall/gjson"
	"sigs.k8s.io/yaml"

	"github.com/watchproxy/watchproxy/bench/cluster"
)

// Objects with random fields, of every kind, are the same in every form: lists of the most recent
// state, of any and of an exact resourceVersion, gets, and watches from the state.
func TestRandomSpecimens(t *testing.T) {
	const each, least = 10, 1500
	another(t, cluster.Options{Flags: slices.Concat(longHistory, since(35, withBetas, withBetas134))}) // so that no other test sees them
	namespace := newNamespaces(t, "specimens", 1)[0]
	if _, err := write(t.Context(), http.MethodPost, definitions, gauges); err == nil { // with -count, it exists
		await(t, get("/apis/example.com/v1/gauges"), http.StatusOK)
	}
	g := &grower{t: t, random: rand.New(rand.NewPCG(cluster.Seed(), 9)), schemas: map[string]gjson.Result{}}
	all := listable(t)
	made := map[*collection][]string{}
	for text := range strings.SplitSeq(specimens(t), "\n---\n") {
		text = strings.ReplaceAll(text, "NAMESPACE", namespace)
		createSpecimen(t, all, namespace, text)
		var base map[string]any
		if err := yaml.Unmarshal([]byte(text), &base); err != nil {
			t.Fatal(err)
		}
		i := slices.IndexFunc(all, func(c *collection) bool { return c.kind == base["kind"] && c.apiVersion() == base["apiVersion"] })
		if i < 0 || rules(all[i]) {
			continue
		}
		for n := range each {
			made[all[i]] = append(made[all[i]], g.create(all[i], namespace, base, n)...)
		}
	}
	t.Logf("%d fields that the specimens do not have, in %d objects; %d requests were refused", g.fields, len(slices.Concat(slices.Collect(maps.Values(made))...)), g.refused)
	if g.fields < least {
		t.Error("there are too few fields: the test does not test")
	}
	t.Run("forms", func(t *testing.T) {
		for _, c := range all {
			t.Run(c.root+"/"+c.resource, func(t *testing.T) {
				t.Parallel()
				compareForms(t, c, made[c])
			})
		}
	})
	log, _, err := cluster.LinesFrom(answers.path, 0)
	if err != nil {
		t.Fatal(err)
	}
	if n, forwarded := bytes.Count(log, []byte(`"source":"cache"`)), bytes.Count(log, []byte(`"source":"upstream"`)); n < forwarded {
		t.Errorf("%d answers came from the cache, and %d from upstream: the test does not test", n, forwarded)
	} else {
		t.Logf("%d answers came from the cache, and %d from upstream", n, forwarded)
	}
}

// rules reports whether objects of a collection rule over requests. Random ones would refuse the
// requests of this test.
func rules(c *collection) bool {
	return slices.ContainsFunc([]string{"admissionregistration", "apiregistration", "apiextensions", "flowcontrol"}, func(group string) bool {
		return strings.HasPrefix(c.root, "/apis/"+group)
	}) || slices.Contains([]string{"namespaces", "limitranges", "resourcequotas"}, c.resource)
}

// compareForms compares lists, watches and objects of a collection in every form.
func compareForms(t *testing.T, c *collection, made []string) {
	t.Helper()
	must(t, proxied, get(c.all()+"?resourceVersion=0"), http.StatusOK) // the proxy starts its feed
	at := revision(t, must(t, apiserver, get(c.all()), http.StatusOK))
	catchUp(t, c, at)
	some := SomeState(at)
	plain := []row{
		{name: "most recent", request: get(c.all()), open: some},
		{name: "any", request: get(c.all() + "?resourceVersion=0"), open: some},
		{name: "exact", request: get(fmt.Sprintf("%s?resourceVersion=%d&resourceVersionMatch=Exact", c.all(), at))},
		{name: "watch", request: get(c.all() + "?" + c.brief() + "&resourceVersion=0")},
	}
	for _, path := range made {
		plain = append(plain, row{name: path, request: get(path + "?resourceVersion=0")})
	}
	var rows []row
	for _, r := range plain {
		r.status, r.from, r.moving = http.StatusOK, anywhere, true
		for _, f := range forms {
			if asked, ok := f.of(r.request); ok {
				v := r
				v.request, v.name = asked, r.name+", "+f.String()
				rows = append(rows, v)
			}
		}
	}
	checkAsIs(t, rows)
}

// grower makes objects with random fields, by upstream's own schemas.
type grower struct {
	t       *testing.T
	random  *rand.Rand
	schemas map[string]gjson.Result // by the path of their document
	fields  int                     // that were taken
	refused int
}

// create makes an object like base, but with random fields. It returns the paths of new objects.
func (g *grower) create(c *collection, namespace string, base map[string]any, n int) (paths []string) {
	g.t.Helper()
	doc := g.document(c)
	schema := g.schemaOf(doc, c)
	if !schema.Exists() {
		return nil // custom resources whose schema preserves everything
	}
	base = clone(base)
	meta := base["metadata"].(map[string]any)
	collectionPath := c.all()
	if c.namespaced {
		collectionPath = c.in(namespace)
	}
	name, renamed := meta["name"].(string), false
	if name == "specimen" || c.namespaced {
		name, renamed = fmt.Sprintf("%s-%d", name, n), true
		meta["name"] = name
	}
	status := base["status"]
	delete(base, "status")
	grown := clone(base)
	g.graft(doc, schema, grown, 0, "apiVersion", "kind", "metadata", "status")
	path := collectionPath + "/" + url.PathEscape(name)
	if !renamed {
		g.settle(grown, base, http.MethodPatch, path)
	} else if !g.settle(grown, base, http.MethodPost, collectionPath) {
		return nil
	}
	if renamed || n == 0 {
		paths = append(paths, path)
	}
	if of := doc.Get("components.schemas").Get(gjson.Escape(refOf(schema.Get("properties.status")))); of.Exists() {
		was := map[string]any{}
		if status != nil {
			was["status"] = status
		}
		now := clone(was)
		if now["status"] == nil {
			now["status"] = map[string]any{}
		}
		if into, ok := now["status"].(map[string]any); ok {
			g.graft(doc, of, into, 0)
			g.settle(now, was, http.MethodPatch, path+"/status")
		}
	}
	return paths
}

// settle sends an object until it is taken. It drops what upstream refuses, but nothing of base. It
// returns false if upstream takes nothing.
func (g *grower) settle(o, base map[string]any, method, target string) bool {
	const most = 200
	for range most {
		body, err := json.Marshal(o)
		if err != nil {
			g.t.Fatal(err)
		}
		r := request{Method: method, Target: target, Body: string(body)}.With("Content-Type", "application/json")
		if method == http.MethodPatch {
			r.Header.Set("Content-Type", "application/merge-patch+json")
		}
		got, err := apiserver.Ask(g.t.Context(), r)
		if err != nil {
			g.t.Logf("upstream panics: %v\n%.1000s", err, body) // a later request shows whether it still answers
		}
		switch got.Status {
		case http.StatusOK, http.StatusCreated:
			g.fields += count(o) - count(base)
			return true
		case http.StatusConflict, http.StatusNotFound, http.StatusMethodNotAllowed: // it exists, or has no status
			return true
		}
		g.refused++
		dropped := false
		for _, cause := range slices.Backward(gjson.GetBytes(got.Body, "details.causes.#.field").Array()) {
			_, ok := drop(o, base, segments(cause.Str))
			dropped = dropped || ok
		}
		if !dropped && !g.dropAny(o, base) {
			g.t.Logf("%s %s is refused: %.300s", method, target, got.Body)
			break
		}
	}
	return false
}

// dropAny drops a random field that base does not have, of the highest level that has one.
func (g *grower) dropAny(o, base map[string]any) bool {
	var own, deeper []string
	for _, key := range slices.Sorted(maps.Keys(o)) {
		switch b, ok := base[key]; {
		case !ok:
			own = append(own, key)
		case count(o[key]) > count(b):
			deeper = append(deeper, key)
		}
	}
	if len(own) > 0 && (len(deeper) == 0 || g.random.IntN(2) == 0) {
		delete(o, own[g.random.IntN(len(own))])
		return true
	}
	for _, key := range deeper {
		was := base[key]
		switch now := o[key].(type) {
		case map[string]any:
			if was, ok := was.(map[string]any); ok && g.dropAny(now, was) {
				return true
			}
		case []any:
			list, ok := was.([]any)
			for i := range now {
				if ok && i < len(list) {
					n, isMap := now[i].(map[string]any)
					w, wasMap := list[i].(map[string]any)
					if isMap && wasMap && g.dropAny(n, w) {
						return true
					}
				}
			}
		}
	}
	return false
}

// drop returns o without what is at a path, or without the smallest part around it that base does not
// have.
func drop(o, base any, path []string) (rest any, dropped bool) {
	if len(path) == 0 {
		return o, false
	}
	switch o := o.(type) {
	case map[string]any:
		key := path[0]
		value, ok := o[key]
		if !ok {
			return o, false
		}
		was, has := any(nil), false
		if base, ok := base.(map[string]any); ok {
			was, has = base[key]
		}
		if o[key], dropped = drop(value, was, path[1:]); !dropped && !has {
			delete(o, key)
			dropped = true
		}
		return o, dropped
	case []any:
		i, err := strconv.Atoi(path[0])
		if err != nil || i >= len(o) {
			return o, false
		}
		was, has := any(nil), false
		if base, ok := base.([]any); ok && i < len(base) {
			was, has = base[i], true
		}
		if o[i], dropped = drop(o[i], was, path[1:]); !dropped && !has {
			return slices.Delete(o, i, i+1), true
		}
		return o, dropped
	}
	return o, false
}

var segment = regexp.MustCompile(`[^.\[\]]+`)

func segments(field string) []string { return segment.FindAllString(field, -1) }

func clone(o map[string]any) (copied map[string]any) {
	b, _ := json.Marshal(o) //nolint:errchkjson // it came from JSON
	_ = json.Unmarshal(b, &copied)
	return copied
}

// count returns the number of values.
func count(o any) (n int) {
	switch o := o.(type) {
	case map[string]any:
		for _, v := range o {
			n += count(v)
		}
	case []any:
		for _, v := range o {
			n += count(v)
		}
	default:
		n = 1
	}
	return n
}

func (g *grower) document(c *collection) gjson.Result {
	path := "/openapi/v3" + c.root
	if _, ok := g.schemas[path]; !ok {
		g.schemas[path] = gjson.ParseBytes(must(g.t, apiserver, get(path), http.StatusOK).Body)
	}
	return g.schemas[path]
}

func (g *grower) schemaOf(doc gjson.Result, c *collection) (found gjson.Result) {
	group, version, _ := strings.Cut(c.apiVersion(), "/")
	if version == "" {
		group, version = "", group
	}
	doc.Get("components.schemas").ForEach(func(_, schema gjson.Result) bool {
		for _, gvk := range schema.Get("x-kubernetes-group-version-kind").Array() {
			if gvk.Get("group").Str == group && gvk.Get("version").Str == version && gvk.Get("kind").Str == c.kind && schema.Get("properties").Exists() {
				found = schema
			}
		}
		return !found.Exists()
	})
	return found
}

// refOf returns the name of the schema to which another one refers.
func refOf(schema gjson.Result) string {
	ref := schema.Get("$ref").Str
	if ref == "" {
		ref = schema.Get("allOf.0.$ref").Str
	}
	return strings.TrimPrefix(ref, "#/components/schemas/")
}

// graft adds random fields to an object.
func (g *grower) graft(doc, schema gjson.Result, into map[string]any, depth int, but ...string) {
	schema.Get("properties").ForEach(func(key, of gjson.Result) bool {
		name := key.Str
		if slices.Contains(but, name) {
			return true
		}
		resolved := of
		if ref := refOf(of); ref != "" {
			resolved = doc.Get("components.schemas").Get(gjson.Escape(ref))
		}
		switch has := into[name].(type) {
		case nil:
			if g.random.IntN(3+depth) == 0 {
				into[name] = g.value(doc, name, of, depth+1)
			}
		case map[string]any:
			g.graft(doc, resolved, has, depth+1)
		case []any:
			item := of.Get("items")
			if ref := refOf(item); ref != "" {
				item = doc.Get("components.schemas").Get(gjson.Escape(ref))
			}
			for _, o := range has {
				if o, ok := o.(map[string]any); ok {
					g.graft(doc, item, o, depth+1)
				}
			}
		}
		return true
	})
}

// value returns a random value for a schema.
func (g *grower) value(doc gjson.Result, name string, schema gjson.Result, depth int) any {
	ref := refOf(schema)
	if ref != "" {
		schema = doc.Get("components.schemas").Get(gjson.Escape(ref))
	}
	pick := func(all ...any) any { return all[g.random.IntN(len(all))] }
	if strings.HasSuffix(ref, ".Quantity") {
		return pick("1", "100m", "1Gi", "0.5", 2)
	}
	if strings.HasSuffix(ref, ".IntOrString") || schema.Get("format").Str == "int-or-string" {
		return pick(1, 8080, "25%", "http")
	}
	switch schema.Get("type").Str {
	case "boolean":
		return pick(true, false)
	case "integer":
		return pick(0, 1, 2, 7, 80, 600)
	case "number":
		return pick(0, 0.5, 3)
	case "string":
		if all := schema.Get("enum").Array(); len(all) > 0 {
			return all[g.random.IntN(len(all))].Str
		}
		switch {
		case schema.Get("format").Str == "date-time" && strings.HasSuffix(ref, ".MicroTime"):
			return time.Now().Add(-time.Duration(g.random.IntN(1000)) * time.Hour).UTC().Format("2006-01-02T15:04:05.000000Z")
		case schema.Get("format").Str == "date-time":
			return time.Now().Add(-time.Duration(g.random.IntN(1000)) * time.Hour).UTC().Format(time.RFC3339)
		case schema.Get("format").Str == "byte":
			return pick("", "YQ==", "PCY+")
		}
		return pick("", "a", "example", "a.b/c", "1", "Always", "True", "/a", "<&>\u2028ü", "ClusterIP", "TCP", "a-b.example.com", "10.0.0.7", strings.ToLower(name))
	case "array":
		list := []any{}
		for range g.random.IntN(3) {
			list = append(list, g.value(doc, name, schema.Get("items"), depth+1))
		}
		return list
	}
	o := map[string]any{}
	if of := schema.Get("additionalProperties"); of.IsObject() {
		for range g.random.IntN(3) {
			o[pick("a", "example.com/b", "cpu", "memory").(string)] = g.value(doc, name, of, depth+1)
		}
		return o
	}
	if depth < 7 { //nolint:mnd // deeper objects are rarely valid
		for _, name := range schema.Get("required").Array() {
			o[name.Str] = g.value(doc, name.Str, schema.Get("properties").Get(gjson.Escape(name.Str)), depth+1)
		}
		g.graft(doc, schema, o, depth)
	}
	return o
}
