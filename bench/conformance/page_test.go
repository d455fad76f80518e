package conformance

import (
	"encoding/base64"
	"fmt"
	"net/url"
	"strings"
	"testing"

	"github.com/watchproxy/watchproxy/bench/cluster"
)

// The test reads lists page by page to the end. Every page must equal the apiserver's, including
// its token and the count of remaining objects. So each token works at both servers, and either
// server can continue a list that the other server has begun.
func TestPageWalks(t *testing.T) {
	for _, walk := range []struct {
		name  string
		of    *collection
		query string
		limit int
		begun source // the source of the proxy's first page
		// recent is true if the server chooses the resourceVersion of the first page.
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
		{"events", coreEvents, coreEvents.all() + "?resourceVersion=$N", 1, cache, false},
		{"events, an earlier state", coreEvents, coreEvents.all() + "?resourceVersion=$PAST", 2, cache, false},
		{"events in a namespace", newEvents, newEvents.in("a") + "?resourceVersion=$N&resourceVersionMatch=Exact", 1, cache, false},
		{"events by label", coreEvents, coreEvents.all() + "?resourceVersion=$N&labelSelector=app%3Dweb", 1, cache, false},
		{"events by field", newEvents, newEvents.all() + "?resourceVersion=$N&resourceVersionMatch=Exact&fieldSelector=reason%3DStarted", 1, cache, false},
		{"events, begun at any state", coreEvents, coreEvents.all() + "?resourceVersion=0", 1, upstream, true},
		{"events, begun at the most recent state", newEvents, newEvents.all() + "?", 1, upstream, true},
		{"events, begun at a state not older", coreEvents, coreEvents.all() + "?resourceVersion=$N&resourceVersionMatch=NotOlderThan", 1, cache, true},
		{"begun at the most recent state", configMaps, configMaps.all() + "?", 60, cache, true},
		{"begun at the most recent state, in a namespace", configMaps, configMaps.in("many") + "?", 60, cache, true},
		{"begun at the most recent state, by label", configMaps, configMaps.in("many") + "?labelSelector=parity%3Dodd", 20, cache, true},
		{"begun at the most recent state, cluster-scoped", nodes, nodes.all() + "?", 1, cache, true},
		{"begun at the most recent state, custom resources", widgets, widgets.all() + "?", 7, cache, true},
		{"begun at a state not older", configMaps, configMaps.all() + "?resourceVersion=$N&resourceVersionMatch=NotOlderThan", 45, cache, true},
		{"begun at a state not older, in a namespace", configMaps, configMaps.in("many") + "?resourceVersion=$N&resourceVersionMatch=NotOlderThan", 45, cache, true},
	} {
		t.Run(walk.name, func(t *testing.T) {
			first := row{request: get(fmt.Sprintf("%s&limit=%d", walk.of.expand(walk.query), walk.limit)), status: 200, from: walk.begun, open: walk.of.exact()}
			if walk.recent {
				first.open = SomeState(walk.of.now)
			}
			first.check(t)
			if !walk.recent {
				walkOn(t, walk.of, first.Target, must(t, apiserver, first.request, 200))
				return
			}
			// The two first pages may show different states. The tokens of both pages work at both
			// servers.
			pages := []reply{must(t, apiserver, first.request, 200), must(t, proxied, first.request, 200)}
			passBy(t, walk.of)
			for _, page := range pages {
				walkOn(t, walk.of, first.Target, page)
			}
		})
	}
}

// walkOn follows the tokens that start from the first page of a list.
func walkOn(t *testing.T, c *collection, first string, page reply) {
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
		next := row{request: get(path + "?" + params.Encode()), status: 200, from: cache, open: c.exact()}
		next.check(t)
		page = must(t, apiserver, next.request, 200)
	}
}

// passBy writes to a collection, so that the proxy's cache is newer than any state that the
// apiserver's cache had reached. Rows about the later pages then test the proxy's cache.
func passBy(t *testing.T, c *collection) {
	t.Helper()
	o := object{of: c, namespace: "default", name: "passer-by"}
	if c.uncached {
		o.fields = c.about(o.namespace, "passer-by")
	}
	rv := o.createT(t)
	if err := o.remove(t.Context()); err != nil {
		t.Fatal(err)
	}
	catchUp(t, c, rv)
	// Until both have seen the deletion too, lists of later rows could differ by this object.
	since := get(fmt.Sprint(c.all(), "?resourceVersionMatch=NotOlderThan&resourceVersion=", rv))
	for _, e := range []*cluster.Endpoint{apiserver, proxied} {
		cluster.Eventually(t, "both drop the passer-by", func() bool {
			return !strings.Contains(string(must(t, e, since, 200).Body), o.name)
		})
	}
}

// token encodes a continue token as clients send it.
func token(plain string) string { return base64.RawURLEncoding.EncodeToString([]byte(plain)) }
