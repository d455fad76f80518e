package conformance

import (
	"fmt"
	"net/http"
	"slices"
	"testing"

	"github.com/tidwall/gjson"
)

// metadataForms are the forms that contain only the metadata of objects, and Tables, which contain
// it, too.
var metadataForms = []form{
	partial("metadata", "application/json"),
	partial("metadata in protobuf", "application/vnd.kubernetes.protobuf"),
	{name: "Table", get: table, list: table, watch: table},
}

// metadataFrom returns the source of metadata.
func (c *collection) metadataFrom() source {
	switch c.root + "/" + c.resource {
	case "/apis/apps/v1/daemonsets", "/apis/autoscaling/v1/horizontalpodautoscalers", "/apis/apps/v1/deployments":
		return upstream
	case "/apis/apiregistration.k8s.io/v1/apiservices":
		return upstream // see compareTables
	}
	return c.source(cache)
}

// metadataRows are lists and gets of metadata. exact lists the collection at a resourceVersion.
func metadataRows(c *collection, exact string, items []gjson.Result) (rows []row) {
	for _, f := range metadataForms[:2] {
		rows = append(rows, row{name: f.name + " of a list", request: get(exact).With("Accept", f.list), status: http.StatusOK, from: c.metadataFrom()})
		for _, item := range items {
			name := item.Get("metadata.name").Str
			rows = append(rows, row{
				name: f.name + " of " + name, request: get(c.pathOf(item)+"?resourceVersion=0").With("Accept", f.get),
				status: http.StatusOK, from: unlessLarge(item, c.metadataFrom()), moving: true,
			})
		}
	}
	return rows
}

// unlessLarge returns the source of an object in another form than the cache's. Upstream writes large
// objects.
func unlessLarge(item gjson.Result, from source) source {
	const large = 64 << 10
	if len(item.Raw) > large {
		return upstream
	}
	return from
}

// watchMetadata compares watches of all resources, from their state to the bookmark that ends it.
// Nothing may be written meanwhile.
func watchMetadata(t *testing.T, all []*collection) {
	t.Helper()
	const query = "?watch=true&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&resourceVersion=0&allowWatchBookmarks=true"
	if withoutStreaming(t, "metadata", query) {
		return
	}
	var open []asked
	for _, c := range all {
		for _, f := range metadataForms {
			from := c.metadataFrom()
			if f.name == "Table" && c.resource != "apiservices" {
				from = c.tables()
			}
			open = append(open, asked{fmt.Sprintf("%s/%s, %s", c.root, c.resource, f.name), get(c.all()+query).With("Accept", f.watch), from, false})
		}
	}
	for some := range slices.Chunk(open, atOnce) {
		for _, p := range openPairs(t, some) {
			t.Run(p.name, func(t *testing.T) { p.compare(t, func(e Event) bool { return e.InitialEnd }) })
		}
	}
}
