package outage

import (
	"net/url"
	"slices"
	"strings"
	"testing"

	"github.com/watchproxy/watchproxy/bench/clients"
	"github.com/watchproxy/watchproxy/bench/cluster"
	"github.com/watchproxy/watchproxy/bench/conformance"
)

// crowd is a set of watches of configmaps through the proxy, with different selectors and starts.
type crowd struct {
	watches []*clients.Watch
	from    map[*clients.Watch]conformance.Connection // without events
	// sources are watches directly at the apiserver, from the beginning, by label selector.
	sources map[string]*clients.Watch
	since   string // their resourceVersion
}

// crowded is the namespace that the crowd watches.
const crowded = "crowded"

const crowdSize = 120

// colours are the values of the label that watches select by.
var colours = []string{"red", "green"}

// newCrowd opens the watches of a namespace that contains one object, the witness, which never
// changes.
func newCrowd(t *testing.T, w *clients.World) *crowd {
	t.Helper()
	w.API.NamespaceT(t, crowded)
	upstream, proxy := w.Endpoints(t)[0], w.Endpoints(t)[1]
	const path = "/api/v1/namespaces/" + crowded + "/configmaps"
	selectors := []string{"", "&labelSelector=colour%3Dred", "&labelSelector=colour%3Dgreen"}
	c := &crowd{from: map[*clients.Watch]conformance.Connection{}, sources: map[string]*clients.Watch{}}
	c.since = clients.ListVersion(t, upstream.GetT(t, path, nil))
	for _, selector := range selectors {
		c.sources[selector] = clients.WatchAt(t, upstream, path+"?watch=1&resourceVersion="+c.since+selector)
	}
	w.CreateConfigMap(t, crowded, "witness", "colour", "red")
	cluster.Eventually(t, "the cache has the witness", func() bool {
		return proxy.GetT(t, path+"/witness?resourceVersion=0", nil).Status == 200
	})
	version := clients.ListVersion(t, proxy.GetT(t, "/api/v1/configmaps?resourceVersion=0", nil))
	for i := range crowdSize {
		target := path + "?watch=1"
		if i%3 == 2 {
			target = "/api/v1/configmaps?watch=1&fieldSelector=" + url.QueryEscape("metadata.namespace="+crowded)
		}
		start := []string{
			"&resourceVersion=0",
			"&resourceVersion=" + version,
			"&resourceVersion=0&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true",
		}[i/4%3]
		from := conformance.Connection{State: true}
		if i/4%3 == 1 {
			from = conformance.Connection{From: clients.Number(t, version)}
		}
		watch := clients.WatchAt(t, proxy, target+start+selectors[max(0, i%4-1)])
		c.watches, c.from[watch] = append(c.watches, watch), from
	}
	return c
}

// stay fails the test if a watch has ended.
func (c *crowd) stay(t *testing.T) {
	t.Helper()
	for _, o := range c.watches {
		if err := o.Ended(); err != nil {
			t.Fatalf("a watch has ended: %v: %s", err, o.Name)
		}
	}
}

// check ends the writer, makes the last writes of each selection, and compares each watch's events
// with the apiserver's own history.
func (c *crowd) check(t *testing.T, w *clients.World, o *writer) {
	t.Helper()
	o.stop()
	for _, colour := range colours {
		w.CreateConfigMap(t, crowded, "end-"+colour, "colour", colour)
	}
	references := map[string]*conformance.Reference{}
	for selector, source := range c.sources {
		cluster.Eventually(t, "the last write", func() bool {
			return !slices.ContainsFunc(colours, func(colour string) bool {
				return (selector == "" || strings.HasSuffix(selector, colour)) && !source.Saw("ADDED", crowded+"/end-"+colour)
			})
		})
		references[selector] = &conformance.Reference{Since: clients.Number(t, c.since), Events: source.Events()}
		t.Logf("%d events%s", len(source.Events()), selector)
	}
	for _, o := range c.watches {
		_, selector, found := strings.Cut(o.Name, "&labelSelector=")
		if found {
			selector = "&labelSelector=" + selector
		}
		cluster.Eventually(t, "the watch is where upstream is: "+o.Name, func() bool { return o.Last().RV >= references[selector].End() })
		history := conformance.History{Name: o.Name, Connections: []conformance.Connection{c.from[o]}}
		history.Connections[0].Events = o.Events()
		for _, violation := range conformance.Check(references[selector], &history) {
			t.Errorf("%s: %v", o.Name, violation)
		}
	}
}
