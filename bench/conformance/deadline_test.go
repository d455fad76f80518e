package conformance

import (
	"fmt"
	"maps"
	"slices"
	"sync"
	"testing"
	"time"
)

// The test reads watches with a time limit to their end and compares everything.
func TestFiniteWatches(t *testing.T) {
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
			{"changes after any", "resourceVersion=0&sendInitialEvents=0&resourceVersionMatch=NotOlderThan", cache},
			{"initial events", "resourceVersion=$N&sendInitialEvents=1&resourceVersionMatch=NotOlderThan", cache},
			{"initial events by label", "resourceVersion=0&labelSelector=changed", cache},
			{"one by name", "resourceVersion=0&fieldSelector=metadata.name%3D$NAME", cache},
			{"nobody by name", "resourceVersion=0&fieldSelector=metadata.name%3Dnobody", cache},
			{"most recent state", "", ifCached},
			{"changes after the most recent", "sendInitialEvents=0&resourceVersionMatch=NotOlderThan", ifCached},
			{"most recent state of one by name", "fieldSelector=metadata.name%3D$NAME", ifCached},
			{"from before the proxy followed", "resourceVersion=$OLD", upstream},
		} {
			target := c.expand(c.in("a") + "?" + c.brief() + "&" + f.query)
			rows = append(rows, row{name: c.name + ", " + f.name, request: get(target), status: 200, from: c.source(f.from)})
		}
		rows = append(rows, historyRows(t, c)...)
		prefixed := c.root + "/watch" + c.in("a")[len(c.root):]
		rows = append(rows,
			row{name: c.name + ", prefix", request: get(prefixed + "?timeoutSeconds=1"), status: 200, from: upstream},
			row{name: c.name + ", prefix of one", request: get(prefixed + "/" + c.one + "?resourceVersion=0&timeoutSeconds=1"), status: 200, from: upstream},
		)
	}
	long := configMaps.in("a") + "?watch=true&resourceVersion=0&timeoutSeconds=1"
	checkTogether(t, append(rows,
		row{name: "too old", request: get(widgets.all() + "?watch=1&resourceVersion=1"), status: 200, from: upstream, open: reach, says: `"reason":"Expired"`},
		row{name: "too old, with bookmarks", request: get(widgets.all() + "?watch=1&resourceVersion=1&allowWatchBookmarks=true&timeoutSeconds=9"), status: 200, from: upstream, open: reach},
		row{name: "too old, by name", request: get(planets.all() + "?watch=1&resourceVersion=1&fieldSelector=metadata.name%3Dearth"), status: 200, from: upstream, open: reach},
		row{name: "metadata", request: get(long).With("Accept", "application/json;as=PartialObjectMetadata;v=v1;g=meta.k8s.io"), status: 200, from: cache},
		row{name: "protobuf", request: get(long).With("Accept", "application/vnd.kubernetes.protobuf;stream=watch"), status: 200, from: cache},
	))
}

// historyRows are watches from before some writes. These writes are recent, because the apiserver
// keeps events for only 75 seconds.
func historyRows(t *testing.T, c *collection) (rows []row) {
	t.Helper()
	s := newScript(t, c)
	n := s.object(s.home, unique("before"), "web", "").createT(t)
	if err := s.run(t.Context()); err != nil {
		t.Fatal(err)
	}
	last := s.object(s.home, unique("after"), "web", "").createT(t)
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

// The proxy forwards watches that start before its history. If there are many such watches, some of
// them get "too old resource version", like watches that start before the apiserver's history.
func TestCrowdOfLateWatches(t *testing.T) {
	const crowd = 32
	// The apiserver has this history, because few endpoints are written.
	late := get(fmt.Sprintf("%s?watch=true&resourceVersion=%d", endpoints.all(), old))
	for range crowd {
		openPairUnseen(t, late)
	}
	check(t, []row{
		{name: "too old", request: get(widgets.all() + "?watch=1&resourceVersion=1"), status: 200, from: cache, open: reach, says: `"reason":"Expired"`},
		{name: "too old, with bookmarks", request: get(widgets.all() + "?watch=1&resourceVersion=1&allowWatchBookmarks=true&timeoutSeconds=9"), status: 200, from: cache, open: reach},
		{name: "too old, deprecated", request: get(widgetsAlpha.in("a") + "?watch=1&resourceVersion=1"), status: 200, from: cache, open: reach},
		{name: "too old, by name", request: get(planets.all() + "?watch=1&resourceVersion=1&fieldSelector=metadata.name%3Dearth"), status: 200, from: cache, open: reach},
	})
}

// There is no limit for forwarded watches that the cache can never answer.
func TestCrowdOfForwardedWatches(t *testing.T) {
	for range 100 {
		openPairUnseen(t, get(coreEvents.in("a")+"?watch=true&sendInitialEvents=true&resourceVersionMatch=NotOlderThan"))
	}
}

// If a watch request is invalid, the response is an error instead of a stream.
func TestRefusedWatches(t *testing.T) {
	for _, c := range samples {
		t.Run(c.name, func(t *testing.T) {
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
				row{name: target, request: get(target), status: f.status, from: upstream}.run(t)
			}
			check(t, []row{
				{name: "as YAML", request: get(c.all()+"?watch=true&resourceVersion=0").With("Accept", "application/yaml"), status: 406, from: upstream},
				{name: "as HTML", request: get(c.all()+"?watch=true&resourceVersion=0").With("Accept", "text/html"), status: 406, from: upstream},
			})
		})
	}
}

// A watch with bookmarks gets a bookmark shortly before it times out, so that its client can resume
// from there.
func TestLastBookmark(t *testing.T) {
	const lifetime = 4 * time.Second
	var streams []*stream
	var unseen []uint64 // resourceVersions of writes that no watch receives
	cs := []*collection{pods, nodes, leases, widgets, planets, coreEvents}
	began := time.Now()
	for _, c := range cs {
		s := newScript(t, c)
		n := s.object(s.home, unique("before"), "web", "").createT(t)
		catchUp(t, c, n)
		target := fmt.Sprintf("%s?watch=true&labelSelector=app%%3Dnobody&resourceVersion=%d&timeoutSeconds=%d", c.all(), n, lifetime/time.Second)
		silent, marked := openPair(t, "silent", get(target), cache), openPair(t, "marked", get(target+"&allowWatchBookmarks=true"), cache)
		streams = append(streams, silent.want, silent.got, marked.want, marked.got)
		unseen = append(unseen, s.object(s.home, unique("unseen"), "web", "").createT(t))
	}
	opened := time.Now()
	for i, four := range slices.Collect(slices.Chunk(toEnd(streams), 4)) {
		t.Run(cs[i].name, func(t *testing.T) {
			silent, marked := four[:2], four[2:]
			if cs[i].uncached {
				silent, marked = four, nil // etcd's watch has no bookmarks
			}
			for _, w := range silent {
				if w.err != nil || len(w.events) > 0 {
					t.Errorf("%s: a watch without bookmarks gave %v, %v", w.name, w.events, w.err)
				}
			}
			marks := map[string]bool{}
			for _, w := range marked {
				w.check(t, unseen[i], began, opened, lifetime)
				for _, e := range w.events {
					marks[string(Settled(e))] = true
				}
			}
			if len(marks) > 1 {
				t.Errorf("bookmarks differ: %v", slices.Collect(maps.Keys(marks)))
			}
		})
	}
}

// watched has the bookmarks of a watch, until its end.
type watched struct {
	name        string // the server's name
	events      []Event
	err         error
	last, ended time.Time // when the last event and the end arrived
}

// toEnd reads watches concurrently.
func toEnd(streams []*stream) []watched {
	all := make([]watched, len(streams))
	var reading sync.WaitGroup
	for i, s := range streams {
		w := &all[i]
		w.name = s.name
		reading.Go(func() {
			w.events, w.err = s.untilWithin(2*minuteLife, func(Event) bool {
				w.last = time.Now()
				return false
			})
			w.ended = time.Now()
		})
	}
	reading.Wait()
	return all
}

// check checks a watch that received only bookmarks. Its lifetime began between the times after and
// before.
func (w *watched) check(t *testing.T, unseen uint64, after, before time.Time, lifetime time.Duration) {
	t.Helper()
	// The apiserver checks once a second which bookmarks are due.
	const early = 3500 * time.Millisecond
	if w.err != nil || len(w.events) == 0 {
		t.Fatalf("%s: %d bookmarks, %v", w.name, len(w.events), w.err)
	}
	for _, e := range w.events {
		if e.Type != "BOOKMARK" || e.InitialEnd || e.RV < unseen {
			t.Errorf("%s: %s", w.name, e.Line)
		}
	}
	if w.last.Before(after.Add(lifetime-early)) || w.last.After(before.Add(lifetime)) {
		t.Errorf("%s: the last bookmark came %v before the end", w.name, w.ended.Sub(w.last))
	}
	if w.ended.Before(after.Add(lifetime)) {
		t.Errorf("%s: the end came after %v of %v", w.name, w.ended.Sub(after), lifetime)
	}
}
