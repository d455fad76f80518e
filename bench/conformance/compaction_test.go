//go:build verify

package conformance

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/tidwall/gjson"

	"github.com/watchproxy/watchproxy/bench/cluster"
)

// another starts an apiserver and a proxy in front of it. They replace the suite's servers for the
// rest of the test.
func another(t *testing.T, options cluster.Options) *cluster.APIServer {
	t.Helper()
	server := cluster.APIServerT(t, options)
	// Each apiserver counts its resourceVersions from the beginning.
	was := make([]uint64, len(collections))
	for i, c := range collections {
		was[i], c.now = c.now, 0
	}
	t.Cleanup(func() {
		for i, c := range collections {
			c.now = was[i]
		}
	})
	anotherProxy(t, server, server.Token, settings)
	return server
}

// anotherProxy starts a proxy with its own settings in front of an apiserver. They replace the
// suite's servers for the rest of the test. Requests use the given token.
func anotherProxy(t *testing.T, server *cluster.APIServer, token, settings string) {
	t.Helper()
	proxy := cluster.ProxyT(t, cluster.ProxyOptions{Kubeconfig: server.KubeconfigT(t, server.URL, token), Settings: settings})
	was, wasLog, wasPartial, wasViews := [...]*cluster.Endpoint{apiserver, proxied, admin}, answers, inParts, views
	t.Cleanup(func() {
		apiserver, proxied, admin, answers, inParts, views = was[0], was[1], was[2], wasLog, wasPartial, wasViews
	})
	inParts, views = false, nil
	speakTo(t, server, token, proxy, "")
}

// After a compaction, old revisions are gone for reads of exact states, for continue tokens, and
// for watches of resources without a cache in the apiserver. A proxy that starts a feed after the
// compaction has no more history than the apiserver.
func TestCompaction(t *testing.T) {
	another(t, cluster.Options{Flags: []string{"--etcd-compaction-interval=1s"}})
	if err := defineCustom(t.Context()); err != nil {
		t.Fatal(err)
	}
	gone := map[*collection]uint64{}
	for _, c := range samples {
		for _, name := range []string{"one", "two", "three"} {
			o := object{of: c, namespace: "default", name: name}
			if c.uncached {
				o.fields = c.about(o.namespace, name)
			}
			rv := o.createT(t)
			if name == "two" {
				gone[c] = rv
			}
		}
	}
	// The apiserver's cache checks for compacted revisions every 15 seconds.
	for _, c := range samples {
		exact := fmt.Sprintf("%s?resourceVersionMatch=Exact&resourceVersion=%d", c.all(), gone[c])
		await(t, get(exact), 410)
	}
	for _, c := range append([]*collection{widgetsAlpha}, samples...) {
		if err := c.follow(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range samples {
		for _, r := range compacted(t, c, gone[c]) {
			check(t, []row{r}) // the proxy forwards 32 such watches at a time, which all forms of a row take
		}
	}
	// If many watches start before the proxy's history, the proxy stops forwarding them. It then
	// answers itself that they are too old.
	old := get(fmt.Sprintf("%s?watch=true&resourceVersion=%d", configMaps.all(), gone[configMaps]))
	openPairs(t, slices.Repeat([]asked{{"old", old, anywhere, false, nil}}, 32))
	const ever = "?watch=true&resourceVersion=1"
	check(t, []row{
		{
			name: "too old for etcd", request: get(fmt.Sprintf("%s?watch=true&resourceVersion=%d", coreEvents.all(), gone[coreEvents])), status: 200, from: cache,
			says: "The resourceVersion for the provided watch is too old.",
		},
		{name: "too old", request: get(widgets.all() + ever), status: 200, from: cache, open: reach, says: `"reason":"Expired"`},
		{name: "too old, with bookmarks", request: get(widgets.all() + ever + "&allowWatchBookmarks=true"), status: 200, from: cache, open: reach},
		{name: "too old, deprecated", request: get(widgetsAlpha.in("default") + ever), status: 200, from: cache, open: reach},
		{name: "too old, by name", request: get(planets.all() + ever + "&fieldSelector=metadata.name%3Done"), status: 200, from: cache, open: reach},
	})
}

// compacted returns requests that use a resourceVersion from before the compaction.
func compacted(t *testing.T, c *collection, rv uint64) (rows []row) {
	t.Helper()
	prefix := "/"
	if c.namespaced {
		prefix = "/default/"
	}
	fill := strings.NewReplacer(
		"$TOKEN", token(fmt.Sprintf(`{"v":"meta.k8s.io/v1","rv":%d,"start":"%sone\u0000"}`, rv, prefix)),
		"$ETCDTOKEN", token(fmt.Sprintf(`{"v":"meta.k8s.io/v1","rv":%d,"start":"%sone\u0000"}`, rv, prefix[1:])),
		"$RV", fmt.Sprint(rv),
	)
	const tooOld = "The resourceVersion for the provided list is too old."
	const inconsistent = "Continuing with the provided token results in an inconsistent list"
	rest := SomeState(rv)
	for _, f := range []struct {
		name, query string
		status      int
		from        source
		open        Rule
		says        string
	}{
		{"list", "resourceVersion=$RV&resourceVersionMatch=Exact", 410, upstream, nil, tooOld},
		{"page", "resourceVersion=$RV&limit=1", 410, upstream, nil, tooOld},
		{"page by match", "resourceVersion=$RV&resourceVersionMatch=Exact&limit=1", 410, upstream, nil, tooOld},
		{"one by name", "resourceVersion=$RV&resourceVersionMatch=Exact&fieldSelector=metadata.name%3Done", 410, upstream, nil, tooOld},
		{"page by its token", "limit=1&continue=$TOKEN", 410, upstream, nil, inconsistent},
		{"page by etcd's token", "limit=1&continue=$ETCDTOKEN", 410, upstream, nil, inconsistent},
		{"not older", "resourceVersion=$RV", 200, cache, rest, ""},
		{"not older, a page", "resourceVersion=$RV&resourceVersionMatch=NotOlderThan&limit=1", 200, cache, rest, ""},
		{"watch", "watch=true&resourceVersion=$RV&timeoutSeconds=1", 200, upstream, nil, ""},
		{"watch with the state", "watch=true&resourceVersion=$RV&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&timeoutSeconds=1", 200, cache, nil, ""},
	} {
		target := fill.Replace(c.all() + "?" + f.query)
		rows = append(rows, row{name: c.name + ", " + f.name, request: get(target), status: f.status, from: c.source(f.from), open: f.open, says: f.says})
	}
	// The response to an expired token contains another token, which continues the list at the
	// present state.
	expired := must(t, apiserver, get(fill.Replace(c.all()+"?limit=1&continue=$TOKEN")), 410)
	next := gjson.GetBytes(expired.Body, "metadata.continue").Str
	return append(rows, row{name: c.name + ", the rest", request: get(c.all() + "?limit=1&continue=" + next), status: 200, from: c.source(ifCached), open: rest})
}
