package conformance

import (
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/tidwall/gjson"
	"sigs.k8s.io/yaml"

	"github.com/watchproxy/watchproxy/bench/cluster"
	"github.com/watchproxy/watchproxy/bench/workload"
)

// kinds are all resources that the apiserver had when the suite's proxy started.
var kinds []*collection

// specimensIn is the namespace of the specimens.
const specimensIn = "specimens"

// kindErrors has the errors about kinds, which are TestKinds' own: older versions of the apiserver lack some.
var kindErrors []error

// createKinds creates objects of every kind, and draws the views of each resource.
func createKinds(tb testing.TB) {
	tb.Helper()
	for _, definition := range []string{gauges, meters} {
		if _, err := write(tb.Context(), http.MethodPost, definitions, definition); err != nil {
			tb.Fatal(err)
		}
	}
	for _, name := range []string{"gauges", "meters"} {
		if _, err := eventually(tb.Context(), apiserver, get("/apis/example.com/v1/"+name), http.StatusOK); err != nil {
			tb.Fatal(err)
		}
	}
	kinds, views = listable(tb), map[string][]*view{}
	suite.NamespaceT(tb, specimensIn)
	for _, text := range specimens(tb) {
		createSpecimen(tb, text)
	}
	for _, c := range kinds {
		objects := gjson.GetBytes(must(tb, apiserver, get(c.all()), http.StatusOK).Body, "items").Array()
		switch {
		case len(objects) == 0:
			kindErrors = append(kindErrors, fmt.Errorf("there is no specimen of %s", c.all()))
		case views[c.configured()] == nil:
			views[c.configured()] = c.drawViews(objects)
		}
	}
}

// settingsOfViews returns the views as the configuration has them.
func settingsOfViews() string {
	var all []any
	for resource, of := range views {
		for _, v := range of {
			all = append(all, v.settings(resource))
		}
	}
	text, err := json.Marshal(all)
	if err != nil {
		panic("BUG: " + err.Error())
	}
	return "views: " + string(text) + "\n"
}

// Objects of every kind are the same in every form and in every view.
func TestKinds(t *testing.T) {
	if err := errors.Join(kindErrors...); err != nil {
		t.Error(err)
	}
	for _, c := range kinds {
		t.Run(strings.TrimPrefix(c.all(), "/"), func(t *testing.T) {
			t.Parallel()
			checkKind(t, c)
		})
	}
}

// k9sTable is the Accept header of the Tables that k9s 0.51 lists every two seconds.
const k9sTable = "application/json;as=Table;v=v1;g=meta.k8s.io,application/json;as=Table;v=v1beta1;g=meta.k8s.io,application/json"

func checkKind(t *testing.T, c *collection) {
	t.Helper()
	// The proxy starts its feeds.
	for _, accept := range append([]string{encodings[4].list}, kept...) {
		must(t, proxied, get(c.all()+"?resourceVersion=0").With("Accept", accept), http.StatusOK)
	}
	objects := gjson.GetBytes(must(t, apiserver, get(c.all()), http.StatusOK).Body, "items").Array()
	// Other tests define gadgets, and create objects of which upstream writes some forms.
	objects = slices.DeleteFunc(objects, func(o gjson.Result) bool {
		return strings.HasPrefix(o.Get("metadata.name").Str, "gadgets") || len(o.Raw) > 64<<10
	})
	if len(objects) == 0 {
		t.Fatal("there is no specimen")
	}
	// A revision of the collection itself stays in the log.
	at, err := write(t.Context(), http.MethodPatch, c.pathOf(objects[0]), fmt.Sprintf(`{"metadata":{"labels":{"touched":"%d"}}}`, time.Now().UnixNano()))
	if err != nil {
		t.Fatal(err)
	}
	catchUp(t, c, at)
	exact := fmt.Sprintf("%s?resourceVersion=%d&resourceVersionMatch=Exact", c.all(), at)
	asTable := func(query string) request { return get(exact+query).With("Accept", table) }
	list := row{name: "exact", request: get(exact), status: http.StatusOK, from: c.source(cache), moving: true}
	tables := inForm(asTable(""), list.from)
	rows := []row{
		{name: "Table with objects", request: asTable("&includeObject=Object"), status: http.StatusOK, from: tables, moving: true},
		{name: "Table without metadata", request: asTable("&includeObject=None").With("Accept-Encoding", "gzip"), status: http.StatusOK, from: upstream, moving: true},
		{name: "Table without rows", request: asTable("&labelSelector=nobody"), status: http.StatusOK, from: tables},
		{name: "Table with an invalid parameter", request: asTable("&includeObject=All"), status: http.StatusBadRequest, from: upstream},
		{name: "Table as k9s lists", request: get(exact+"&includeObject=Metadata&labelSelector=&fieldSelector=").With("Accept", k9sTable), status: http.StatusOK, from: tables, moving: true},
	}
	of := views[c.configured()]
	rows[0].view, rows[1].view = of[cluster.Draw(len(of), c.all())], of[cluster.Draw(len(of), c.all(), "none")]
	for i, f := range slices.Concat(encodings, encodings) {
		f.gzip = (i >= len(encodings)) != (cluster.Draw(2, c.all(), f.name) == 0)
		if other, ok := list.as(f); ok {
			rows = append(rows, other)
		}
	}
	change := row{name: "change", request: get(fmt.Sprintf("%s?%s&resourceVersion=%d", c.all(), c.brief(), at-1)), status: http.StatusOK, from: c.source(cache), moving: true}
	for _, f := range encodings {
		// Other Tables may begin later.
		if other, ok := change.as(f); ok && (f.name != "Table" || slices.Contains([]string{"gauges", "meters", "jobs"}, c.resource)) {
			rows = append(rows, other)
		}
	}
	for _, v := range of {
		list.view = v
		other, _ := list.as(drawForm(c.all()+v.name, viewForms))
		other.name += ", " + v.name
		rows = append(rows, other)
	}
	checkAsIs(t, rows)
	rows = []row{
		{name: "page", request: get(exact + "&limit=1"), from: c.source(cache), open: c.exact()},
		{name: "any", request: get(c.all() + "?resourceVersion=0"), from: c.source(cache), open: SomeState(at)},
		{name: "most recent", request: get(c.all()), from: c.source(ifCached), open: SomeState(at)},
		{name: "forwarded", request: get(c.all() + "?unknown=1"), from: upstream, open: SomeState(at)},
		{name: "watch", request: get(c.all() + "?" + c.brief() + "&resourceVersion=0"), from: c.source(cache)},
		{
			name: "watch with the end of the state", from: c.source(cache),
			request: get(c.all() + "?watch=true&timeoutSeconds=1&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&resourceVersion=0&allowWatchBookmarks=true"),
		},
	}
	const gets = 5 // the specimens' namespace is one of the last namespaces
	for _, item := range objects[max(0, len(objects)-gets):] {
		path := c.pathOf(item)
		rows = append(rows, row{name: path, request: get(path + "?resourceVersion=0"), from: c.source(cache)})
	}
	for i := range rows {
		rows[i].status, rows[i].moving = http.StatusOK, true
	}
	check(t, rows)
}

// pathOf returns the path of an item in a list.
func (c *collection) pathOf(item gjson.Result) string {
	name := "/" + url.PathEscape(item.Get("metadata.name").Str)
	if !c.namespaced {
		return c.all() + name
	}
	return c.in(item.Get("metadata.namespace").Str) + name
}

// listable returns all resources that can be listed and watched.
func listable(tb testing.TB) (all []*collection) {
	tb.Helper()
	roots := []string{"/api/v1"}
	for _, g := range gjson.GetBytes(must(tb, apiserver, get("/apis"), http.StatusOK).Body, "groups.#.versions|@flatten").Array() {
		roots = append(roots, "/apis/"+g.Get("groupVersion").Str)
	}
	for _, root := range roots {
		for _, r := range gjson.GetBytes(must(tb, apiserver, get(root), http.StatusOK).Body, "resources").Array() {
			verbs := r.Get("verbs").String()
			if !strings.Contains(verbs, `"list"`) || !strings.Contains(verbs, `"watch"`) {
				continue
			}
			c := &collection{root: root, resource: r.Get("name").Str, kind: r.Get("kind").Str, namespaced: r.Get("namespaced").Bool()}
			// The aggregator serves APIServices outside of any of them.
			c.excluded, c.uncached = c.resource == secrets.resource || c.resource == "apiservices", c.resource == coreEvents.resource
			all = append(all, c)
		}
	}
	if len(all) < 60 {
		kindErrors = append(kindErrors, fmt.Errorf("%d resources can be listed", len(all)))
	}
	return all
}

// specimens returns the specimens with their timestamps.
func specimens(tb testing.TB) (all []string) {
	tb.Helper()
	der := certificateRequest(tb)
	fill := strings.NewReplacer(
		"request: CSR", "request: "+base64.StdEncoding.EncodeToString(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der})),
		"stubPKCS10Request: DER", "stubPKCS10Request: "+base64.StdEncoding.EncodeToString(der),
		"BUNDLE", strconv.Quote(trustBundle(tb, "")["spec"].(map[string]any)["trustBundle"].(string)),
		"NAMESPACE", specimensIn,
	)
	for _, file := range append([]string{"specimens", "rich"}, since(37, []string{"specimens-1.37"}, nil)...) {
		text, err := os.ReadFile("testdata/" + file + ".yaml")
		if err != nil {
			tb.Fatal(err)
		}
		all = append(all, strings.Split(workload.TimestampsT(tb, fill.Replace(string(text))), "\n---\n")...)
	}
	return all
}

// createSpecimen creates a specimen, and writes its status as a controller would. It adds metadata for
// views to cut.
func createSpecimen(tb testing.TB, text string) {
	tb.Helper()
	var o struct {
		APIVersion, Kind string
		Metadata         map[string]any
		Status           json.RawMessage
	}
	var whole map[string]any
	for _, into := range []any{&o, &whole} {
		if err := yaml.Unmarshal([]byte(text), into); err != nil {
			tb.Fatal(err)
		}
	}
	i := slices.IndexFunc(kinds, func(c *collection) bool { return c.kind == o.Kind && c.apiVersion() == o.APIVersion })
	if i < 0 {
		if minor >= 36 {
			kindErrors = append(kindErrors, fmt.Errorf("no such resource: %s", text))
		}
		return
	}
	c, target := kinds[i], kinds[i].all()
	if c.namespaced {
		target = c.in(specimensIn)
	}
	for _, key := range []string{"annotations", "labels"} {
		of, _ := o.Metadata[key].(map[string]any)
		if of == nil {
			of = map[string]any{}
		}
		of["example.com/"+key] = "sentinel-" + key
		o.Metadata[key] = of
	}
	if o.Metadata["name"] == "rich" {
		o.Metadata["ownerReferences"] = []any{map[string]any{"apiVersion": "example.com/v1", "kind": "Owner", "name": "o", "uid": "u", "controller": true}}
	}
	whole["metadata"] = o.Metadata
	body, err := json.Marshal(whole)
	if err != nil {
		tb.Fatal(err)
	}
	if _, err := write(tb.Context(), http.MethodPost, target+"?fieldManager=sentinel-manager", string(body)); err != nil {
		kindErrors = append(kindErrors, err)
		return
	}
	if o.Status != nil && c.kind != "Planet" && c.kind != "Widget" {
		target += "/" + url.PathEscape(o.Metadata["name"].(string)) + "/status"
		if _, err := write(tb.Context(), http.MethodPatch, target, `{"status":`+string(o.Status)+`}`); err != nil {
			kindErrors = append(kindErrors, err)
		}
	}
}

// gauges are custom resources with a column of each type, and with dates in all parts of the object.
const gauges = `{"kind":"CustomResourceDefinition","apiVersion":"apiextensions.k8s.io/v1","metadata":{"name":"gauges.example.com"},
	"spec":{"group":"example.com","scope":"Namespaced","names":{"kind":"Gauge","plural":"gauges","singular":"gauge"},"versions":[
	{"name":"v1","served":true,"storage":true,"subresources":{"status":{}},"schema":{"openAPIV3Schema":{"type":"object","x-kubernetes-preserve-unknown-fields":true}},
	"additionalPrinterColumns":[
	{"name":"Size","type":"integer","jsonPath":".spec.size"},
	{"name":"Interval","type":"string","jsonPath":".spec.interval"},
	{"name":"Full","type":"boolean","jsonPath":".spec.full"},
	{"name":"Ratio","type":"number","jsonPath":".spec.ratio"},
	{"name":"Last","type":"date","jsonPath":".spec.last","description":"When it was read last."},
	{"name":"Next","type":"date","jsonPath":".spec.next","priority":1},
	{"name":"Broken","type":"date","jsonPath":".spec.broken"},
	{"name":"Dotted","type":"date","jsonPath":".metadata.annotations.example\\.com/at"},
	{"name":"Done","type":"date","jsonPath":".status.done"},
	{"name":"Age","type":"date","jsonPath":".metadata.creationTimestamp"}]}]}}`

// meters are custom resources with a column of each type. Their only date is their age.
const meters = `{"kind":"CustomResourceDefinition","apiVersion":"apiextensions.k8s.io/v1","metadata":{"name":"meters.example.com"},
	"spec":{"group":"example.com","scope":"Namespaced","names":{"kind":"Meter","plural":"meters","singular":"meter"},"versions":[
	{"name":"v1","served":true,"storage":true,"schema":{"openAPIV3Schema":{"type":"object","x-kubernetes-preserve-unknown-fields":true}},
	"additionalPrinterColumns":[
	{"name":"Size","type":"integer","jsonPath":".spec.size"},
	{"name":"Interval","type":"string","jsonPath":".spec.interval"},
	{"name":"Full","type":"boolean","jsonPath":".spec.full"},
	{"name":"Ratio","type":"number","jsonPath":".spec.ratio"},
	{"name":"Last","type":"string","jsonPath":".spec.last"},
	{"name":"Age","type":"date","jsonPath":".metadata.creationTimestamp"}]}]}}`
