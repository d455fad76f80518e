package conformance

import (
	"encoding/base64"
	"encoding/pem"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tidwall/gjson"
	"sigs.k8s.io/yaml"

	"github.com/watchproxy/watchproxy/bench/workload"
)

// Tables of all resources that can be listed come from the cache, except those in forwardedTables,
// and their cells equal the apiserver's. Ages may differ by the time between the responses. The
// metadata of all resources equals the apiserver's, too.
func TestTables(t *testing.T) {
	namespace := newNamespaces(t, "tables", 1)[0]
	for name, definition := range map[string]string{"gauges": gauges, "meters": meters} {
		if _, err := write(t.Context(), http.MethodPost, definitions, definition); err == nil { // with -count, it exists
			await(t, get("/apis/example.com/v1/"+name), http.StatusOK)
		}
	}
	all := listable(t)
	for text := range strings.SplitSeq(specimens(t), "\n---\n") {
		createSpecimen(t, all, namespace, strings.ReplaceAll(text, "NAMESPACE", namespace))
	}
	// With -count, the object exists.
	_, _ = object{of: trustBundles, name: "tables", fields: trustBundle(t, "")}.create(t.Context())
	t.Run("lists", func(t *testing.T) {
		for _, c := range all {
			t.Run(c.root+"/"+c.resource, func(t *testing.T) {
				t.Parallel()
				compareTables(t, c)
			})
		}
	})
	t.Run("watches", func(t *testing.T) { watchMetadata(t, all) })
}

// k9sTable is the Accept header of the Tables that k9s 0.51 lists every two seconds.
const k9sTable = "application/json;as=Table;v=v1;g=meta.k8s.io,application/json;as=Table;v=v1beta1;g=meta.k8s.io,application/json"

// forwardedTables has the resources whose rows depend on other objects of the list, or have a
// duration or another age than that of the object.
var forwardedTables = []string{
	"flowschemas", "storageclasses",
	"jobs", "cronjobs", "events", "certificatesigningrequests", "devicetaintrules", "resourcepoolstatusrequests", "gauges",
}

// inForm returns the source of a response whose JSON has the source from. Upstream answers some
// Tables.
func inForm(r request, from source) source {
	path, _, _ := strings.Cut(r.Target, "?")
	parts := plainPath.FindStringSubmatch(path)
	if from == cache && r.Header.Get("Accept") == table && parts != nil && slices.Contains(forwardedTables, parts[1]) {
		return upstream
	}
	return from
}

// tables is the source of Tables of a resource.
func (c *collection) tables() source {
	if slices.Contains(forwardedTables, c.resource) {
		return upstream
	}
	return c.source(cache)
}

// compareTables compares Tables of a resource: with each value of includeObject, by pages, and of
// single objects.
func compareTables(t *testing.T, c *collection) {
	t.Helper()
	asTable := func(target string) request { return get(target).With("Accept", table) }
	from := c.tables()
	if c.resource == "apiservices" { // the aggregator serves them outside of any APIService
		from = upstream
	}
	// The proxy starts its feeds.
	must(t, proxied, asTable(c.all()+"?resourceVersion=0"), http.StatusOK)
	must(t, proxied, get(c.all()+"?resourceVersion=0"), http.StatusOK)
	must(t, proxied, get(c.all()+"?resourceVersion=0").With("Accept", metadataForms[1].list), http.StatusOK)
	before := gjson.GetBytes(must(t, apiserver, get(c.all()), http.StatusOK).Body, "items").Array()
	if len(before) == 0 {
		t.Fatal("there is no specimen")
	}
	// A revision of the collection itself stays in the log.
	at, err := write(t.Context(), http.MethodPatch, c.pathOf(before[0]), fmt.Sprintf(`{"metadata":{"labels":{"touched":"%d"}}}`, time.Now().UnixNano()))
	if err != nil {
		t.Fatal(err)
	}
	catchUp(t, c, at)
	exact := fmt.Sprintf("%s?resourceVersion=%d&resourceVersionMatch=Exact", c.all(), at)
	rows := []row{
		{name: "list", request: asTable(exact)},
		{name: "list with objects", request: asTable(exact + "&includeObject=Object")},
		{name: "list without rows", request: asTable(exact + "&labelSelector=nobody")},
		{name: "list without metadata", request: asTable(exact + "&includeObject=None")},
		{name: "list with an invalid parameter", request: asTable(exact + "&includeObject=All")},
		{name: "page", request: asTable(exact + "&limit=1"), open: ExactPage},
		{name: "most recent", request: asTable(c.all()), open: SomeState(at), moving: true},
		{name: "as k9s lists", request: get(exact+"&includeObject=Metadata&labelSelector=&fieldSelector=").With("Accept", k9sTable)},
		{name: "gzip", request: asTable(exact+"&includeObject=Object").With("Accept-Encoding", "gzip")},
		{name: "indented", request: get(exact).With("Accept", strings.Replace(table, ",", ";pretty=1,", 1))},
	}
	for i := range rows {
		r := &rows[i]
		r.status, r.from = http.StatusOK, from
		if strings.Contains(r.name, "invalid") {
			r.status, r.from = http.StatusBadRequest, upstream
		}
		if r.name == "indented" {
			r.from = upstream
		}
		if r.name == "most recent" && c.uncached {
			r.from = upstream
		}
	}
	if slices.Contains([]string{"gauges", "meters", "jobs"}, c.resource) {
		rows = append(rows, tableWatches(c, at)...)
	}
	const gets = 5
	// The specimens' namespace is one of the last namespaces.
	last := before[max(0, len(before)-gets):]
	rows = append(rows, metadataRows(c, exact, last)...)
	for _, item := range last {
		target := c.pathOf(item) + "?resourceVersion=0"
		rows = append(rows, row{name: target, request: asTable(target), status: http.StatusOK, from: unlessLarge(item, from), moving: true})
	}
	checkAsIs(t, rows)
}

// tableWatches are watches of Tables with ages, from the state and from the change at a
// resourceVersion on.
func tableWatches(c *collection, at uint64) (rows []row) {
	state, change := "resourceVersion=0", fmt.Sprintf("resourceVersion=%d", at-1)
	for name, query := range map[string]string{
		"state":                    state,
		"state with objects":       state + "&includeObject=Object",
		"state without metadata":   state + "&includeObject=None",
		"state by label":           state + "&labelSelector=touched",
		"initial events":           state + "&sendInitialEvents=true&resourceVersionMatch=NotOlderThan",
		"changes":                  change,
		"changes with objects":     change + "&includeObject=Object",
		"changes without metadata": change + "&includeObject=None",
	} {
		rows = append(rows, row{
			name: "watch, " + name, request: get(c.all()+"?watch=true&timeoutSeconds=1&"+query).With("Accept", table),
			status: http.StatusOK, from: c.tables(), moving: true, says: `"rows":[`,
		})
	}
	return rows
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
func listable(t *testing.T) (all []*collection) {
	t.Helper()
	roots := []string{"/api/v1"}
	for _, g := range gjson.GetBytes(must(t, apiserver, get("/apis"), http.StatusOK).Body, "groups.#.versions|@flatten").Array() {
		roots = append(roots, "/apis/"+g.Get("groupVersion").Str)
	}
	for _, root := range roots {
		for _, r := range gjson.GetBytes(must(t, apiserver, get(root), http.StatusOK).Body, "resources").Array() {
			verbs := r.Get("verbs").String()
			if !strings.Contains(verbs, `"list"`) || !strings.Contains(verbs, `"watch"`) || strings.HasPrefix(root, "/apis/example.com") && !slices.Contains([]string{"gauges", "meters"}, r.Get("name").Str) {
				continue
			}
			c := &collection{root: root, resource: r.Get("name").Str, kind: r.Get("kind").Str, namespaced: r.Get("namespaced").Bool()}
			c.excluded, c.uncached = c.resource == secrets.resource, c.resource == coreEvents.resource
			all = append(all, c)
		}
	}
	if len(all) < 60 {
		t.Fatalf("%d resources can be listed", len(all))
	}
	return all
}

// specimens returns the specimens with their timestamps.
func specimens(t *testing.T) string {
	t.Helper()
	text, err := os.ReadFile("testdata/specimens.yaml")
	if err != nil {
		t.Fatal(err)
	}
	more, err := os.ReadFile("testdata/specimens-1.37.yaml")
	if err != nil {
		t.Fatal(err)
	}
	text = append(text, since(37, "\n---\n"+string(more), "")...)
	der := certificateRequest(t)
	filled := strings.NewReplacer(
		"request: CSR", "request: "+base64.StdEncoding.EncodeToString(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der})),
		"stubPKCS10Request: DER", "stubPKCS10Request: "+base64.StdEncoding.EncodeToString(der),
	).Replace(string(text))
	return workload.TimestampsT(t, filled)
}

// createSpecimen creates a specimen, and writes its status as a controller would.
func createSpecimen(t *testing.T, all []*collection, namespace, text string) {
	t.Helper()
	body, err := yaml.YAMLToJSON([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	o := gjson.ParseBytes(body)
	i := slices.IndexFunc(all, func(c *collection) bool {
		return c.kind == o.Get("kind").Str && strings.HasSuffix(c.root, "/"+o.Get("apiVersion").Str)
	})
	if i < 0 {
		if minor >= 36 {
			t.Fatalf("no such resource: %s", text)
		}
		return
	}
	c, target := all[i], all[i].all()
	if c.namespaced {
		target = c.in(namespace)
	}
	if _, err := write(t.Context(), http.MethodPost, target, string(body)); err != nil && !strings.Contains(err.Error(), "AlreadyExists") {
		t.Error(err)
		return
	}
	if status := o.Get("status"); status.Exists() {
		if _, err := write(t.Context(), http.MethodPatch, target+"/"+url.PathEscape(o.Get("metadata.name").Str)+"/status", `{"status":`+status.Raw+`}`); err != nil {
			t.Error(err)
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
