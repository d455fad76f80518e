package conformance

import (
	"fmt"
	"slices"
	"testing"

	"github.com/watchproxy/watchproxy/bench/cluster"
)

// The test reads watches with a time limit to their end and compares everything. TestWatches has
// more forms of watches.
func TestFiniteWatches(t *testing.T) {
	t.Parallel()
	var rows []row
	for _, c := range samples {
		for _, f := range []struct {
			name, query string
			from        source
		}{
			{"state", "resourceVersion=0", cache},
			{"future", "resourceVersion=1000000000", cache},
			{"largest future that etcd knows", "resourceVersion=9223372036854775806", cache},
			{"future beyond etcd's", "resourceVersion=9223372036854775807", ifCached},
			{"largest future", "resourceVersion=18446744073709551615", ifCached},
			{"nobody by name", "resourceVersion=0&fieldSelector=metadata.name%3Dnobody", cache},
			{"most recent state", "", ifCached},
			{"from before the proxy followed", "resourceVersion=$OLD", upstream},
		} {
			target := c.expand(c.in("a") + "?" + c.brief() + "&" + f.query)
			rows = append(rows, row{name: c.name + ", " + f.name, request: get(target), status: 200, from: c.source(f.from)})
		}
		rows = append(rows, historyRows(t, c)...)
	}
	check(t, append(rows,
		row{name: "too old", request: get(widgets.all() + "?watch=1&resourceVersion=1"), status: 200, from: upstream, open: reach, says: `"reason":"Expired"`},
		row{name: "too old, with bookmarks", request: get(widgets.all() + "?watch=1&resourceVersion=1&allowWatchBookmarks=true&timeoutSeconds=9"), status: 200, from: upstream, open: reach},
		row{name: "too old, by name", request: get(planets.all() + "?watch=1&resourceVersion=1&fieldSelector=metadata.name%3Dearth"), status: 200, from: upstream, open: reach},
	))
}

// historyRows are watches from before some writes. The apiserver keeps the last hundred events of a
// resource, however old they are.
func historyRows(t *testing.T, c *collection) (rows []row) {
	t.Helper()
	s := newScript(t, c)
	n := s.object(s.home, cluster.UniqueName("before"), "web", "").createT(t)
	if err := s.run(t.Context()); err != nil {
		t.Fatal(err)
	}
	last := s.object(s.home, cluster.UniqueName("after"), "web", "").createT(t)
	catchUp(t, c, last)
	for name, selector := range map[string]string{
		"history": "", "history by name": "&fieldSelector=metadata.name%3D" + s.first, "history by label": "&labelSelector=app%3Dweb",
		"history by another label": "&labelSelector=app!%3Dweb", "history with bookmarks": "&allowWatchBookmarks=true",
	} {
		target := fmt.Sprintf("%s?%s&resourceVersion=%d%s", c.in(s.home), c.brief(), n, selector)
		rows = append(rows, row{name: c.name + ", " + name, request: get(target), status: 200, from: cache})
	}
	target := fmt.Sprintf("%s?%s&resourceVersion=%d", c.in(s.home), c.brief(), last)
	return append(rows, row{name: c.name + ", nothing", request: get(target), status: 200, from: cache})
}

// brief returns the query of a watch that ends soon after all existing events have arrived. From
// etcd, past events take longer to arrive.
func (c *collection) brief() string {
	if c.uncached {
		return "watch=true&timeoutSeconds=3"
	}
	return "watch=true&timeoutSeconds=1"
}

// There is no limit for forwarded watches that the cache can never answer. The limit for others is
// 32.
func TestCrowdOfForwardedWatches(t *testing.T) {
	const crowd = 40
	r := get(coreEvents.in("a") + "?watch=true&sendInitialEvents=true&resourceVersionMatch=NotOlderThan")
	openPairs(t, slices.Repeat([]asked{{"most recent", r, upstream, false, nil}}, crowd))
}

// If a watch request is invalid, the response is an error instead of a stream.
func TestRefusedWatches(t *testing.T) {
	for _, c := range []*collection{configMaps, widgets, coreEvents} {
		t.Run(c.name, func(t *testing.T) {
			var rows []row
			for _, f := range []struct {
				query  string
				status int
			}{
				{"watch=true&resourceVersion=abc", 500},
				{"watch=true&resourceVersion=-1", 500},
				{"watch=true&resourceVersion=0&resourceVersionMatch=NotOlderThan", 422},
				{"watch=true&resourceVersion=$N&resourceVersionMatch=Exact", 422},
				{"watch=true&resourceVersion=0&sendInitialEvents=true", 422},
				{"watch=true&resourceVersion=0&sendInitialEvents=false", 422},
				{"watch=true&resourceVersion=$N&sendInitialEvents=false", 422},
				{"watch=true&resourceVersion=0&sendInitialEvents", 422},
				{"watch=true&resourceVersion=0&sendInitialEvents=true&resourceVersionMatch=Exact", 422},
				{"watch=true&resourceVersion=0&resourceVersionMatch=nonsense", 422},
				{"watch=true&resourceVersion=0&continue=x", 422},
				{"watch=true&resourceVersion=0&labelSelector=!!", 400},
				{"watch=true&resourceVersion=0&fieldSelector=x", 400},
				{"watch=true&resourceVersion=0&fieldSelector=spec.nonsense%3Dx", 400},
				{"watch=true&resourceVersion=0&timeoutSeconds=x", 400},
				{"watch=true&resourceVersion=0&limit=x", 400},
			} {
				target := c.expand(c.all() + "?" + f.query)
				rows = append(rows, row{name: target, request: get(target), status: f.status, from: upstream})
			}
			check(t, append(rows,
				row{name: "as YAML", request: get(c.all()+"?watch=true&resourceVersion=0").With("Accept", "application/yaml"), status: 406, from: upstream},
				row{name: "as HTML", request: get(c.all()+"?watch=true&resourceVersion=0").With("Accept", "text/html"), status: 406, from: upstream},
			))
		})
	}
}
