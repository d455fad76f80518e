package conformance

import (
	"fmt"
	"maps"
	"slices"
	"sync"
	"testing"
	"time"
)

// Watches that end by themselves are compared as a whole, with their end.
func TestFiniteWatches(t *testing.T) {
	c := configMaps
	watch := func(query string) request {
		return get(c.expand(c.in("a") + "?watch=true&" + query))
	}
	checkTogether(t, cache, []row{
		{name: "state, then the end", request: watch("resourceVersion=0&timeoutSeconds=1"), status: 200},
		{name: "nothing, then the end", request: watch("resourceVersion=$N&timeoutSeconds=1"), status: 200},
		{name: "future, then the end", request: watch("resourceVersion=1000000000&timeoutSeconds=1"), status: 200},
		{name: "largest future, then the end", request: watch("resourceVersion=18446744073709551615&timeoutSeconds=1"), status: 200},
		{name: "changes after any, then the end", request: watch("resourceVersion=0&sendInitialEvents=0&resourceVersionMatch=NotOlderThan&timeoutSeconds=1"), status: 200},
		{name: "initial events, then the end", request: watch("resourceVersion=$N&sendInitialEvents=1&resourceVersionMatch=NotOlderThan&timeoutSeconds=1"), status: 200},
		{name: "initial events by label, then the end", request: watch("resourceVersion=0&timeoutSeconds=1&labelSelector=changed"), status: 200},
		{name: "one by name, then the end", request: watch("resourceVersion=0&timeoutSeconds=1&fieldSelector=metadata.name%3Dlarge"), status: 200},
		{name: "nobody by name, then the end", request: watch("resourceVersion=0&timeoutSeconds=1&fieldSelector=metadata.name%3Dnobody"), status: 200},
		{name: "history", request: watch("resourceVersion=$PAST&timeoutSeconds=1"), status: 200},
		{name: "history by name", request: watch("resourceVersion=$PAST&timeoutSeconds=1&fieldSelector=metadata.name%3Drecreated"), status: 200},
		{name: "history by another label", request: watch("resourceVersion=$PAST&timeoutSeconds=1&labelSelector=!changed"), status: 200},
	})
	checkTogether(t, upstream, []row{
		{name: "most recent state, then the end", request: watch("timeoutSeconds=1"), status: 200},
		{name: "prefix, then the end", request: get("/api/v1/watch/namespaces/a/configmaps?timeoutSeconds=1"), status: 200},
		{name: "prefix of one, then the end", request: get("/api/v1/watch/namespaces/a/configmaps/x?resourceVersion=0&timeoutSeconds=1"), status: 200},
		{name: "too old", request: get(widgets.all() + "?watch=1&resourceVersion=1"), status: 200, open: reach, says: `"reason":"Expired"`},
		{name: "too old, with bookmarks", request: get(widgets.all() + "?watch=1&resourceVersion=1&allowWatchBookmarks=true&timeoutSeconds=9"), status: 200, open: reach},
		{name: "too old, by name", request: get(planets.all() + "?watch=1&resourceVersion=1&fieldSelector=metadata.name%3Dearth"), status: 200, open: reach},
		{name: "from before the proxy followed", request: watch(fmt.Sprintf("resourceVersion=%d&timeoutSeconds=1", old)), status: 200},
		{name: "too large", request: watch("resourceVersion=1000000000&sendInitialEvents=true&resourceVersionMatch=NotOlderThan"), status: 200, open: reach},
		{name: "events", request: get("/api/v1/namespaces/a/events?watch=true&resourceVersion=0&timeoutSeconds=1"), status: 200},
		{name: "metadata", request: watch("resourceVersion=0&timeoutSeconds=1").with("Accept", "application/json;as=PartialObjectMetadata;v=v1;g=meta.k8s.io"), status: 200},
		{name: "protobuf", request: watch("resourceVersion=0&timeoutSeconds=1").with("Accept", "application/vnd.kubernetes.protobuf;stream=watch"), status: 200},
	})
}

// Watches from before the proxy's history are the apiserver's to serve, but for a crowd of them: then some are told that
// it is too old, as the apiserver tells those from before its own.
func TestCrowdOfLateWatches(t *testing.T) {
	const crowd = 32
	late := get(fmt.Sprintf("%s?watch=true&resourceVersion=%d", configMaps.all(), old))
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

// What is wrong with a watch is told before it begins.
func TestRefusedWatches(t *testing.T) {
	for _, c := range []*collection{pods, planets} {
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
				{name: "as YAML", request: get(c.all()+"?watch=true&resourceVersion=0").with("Accept", "application/yaml"), status: 406, from: upstream},
				{name: "as HTML", request: get(c.all()+"?watch=true&resourceVersion=0").with("Accept", "text/html"), status: 406, from: upstream},
			})
		})
	}
}

// A watch that asks for bookmarks gets one shortly before it times out, so that its client can go on from there.
func TestLastBookmark(t *testing.T) {
	const lifetime = 4 * time.Second
	var streams []*stream
	var unseen []uint64 // of a write that no watch sees
	cs := []*collection{pods, nodes, leases, widgets, planets}
	began := time.Now()
	for _, c := range cs {
		s := newScript(t, c)
		n, err := s.object(s.home, unique("before"), "web", "").create(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		proxied.must(t, get(fmt.Sprintf("%s?limit=1&resourceVersionMatch=NotOlderThan&resourceVersion=%d", c.all(), n)), 200)
		target := fmt.Sprintf("%s?watch=true&labelSelector=app%%3Dnobody&resourceVersion=%d&timeoutSeconds=%d", c.all(), n, lifetime/time.Second)
		silent, marked := openPair(t, "silent", get(target), cache), openPair(t, "marked", get(target+"&allowWatchBookmarks=true"), cache)
		streams = append(streams, silent.want, silent.got, marked.want, marked.got)
		rv, err := s.object(s.home, unique("unseen"), "web", "").create(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		unseen = append(unseen, rv)
	}
	opened := time.Now()
	for i, four := range slices.Collect(slices.Chunk(toEnd(streams), 4)) {
		t.Run(cs[i].name, func(t *testing.T) {
			for _, w := range four[:2] {
				if w.err != nil || len(w.events) > 0 {
					t.Errorf("%s: a watch without bookmarks gave %v, %v", w.name, w.events, w.err)
				}
			}
			marks := map[string]bool{}
			for _, w := range four[2:] {
				w.check(t, unseen[i], began, opened, lifetime)
				for _, e := range w.events {
					marks[string(settled(e))] = true
				}
			}
			if len(marks) != 1 {
				t.Errorf("bookmarks differ: %v", slices.Collect(maps.Keys(marks)))
			}
		})
	}
}

// watched is what came on a watch until its end.
type watched struct {
	name        string // of the server
	events      []Event
	err         error
	last, ended time.Time // when the last event and the end came
}

// toEnd reads watches side by side.
func toEnd(streams []*stream) []watched {
	all := make([]watched, len(streams))
	var reading sync.WaitGroup
	for i, s := range streams {
		w := &all[i]
		w.name = s.name
		reading.Go(func() {
			w.events, w.err = s.until(func(Event) bool {
				w.last = time.Now()
				return false
			})
			w.ended = time.Now()
		})
	}
	reading.Wait()
	return all
}

// check holds a watch that shows nothing but bookmarks against its lifetime, which began between two times.
func (w *watched) check(t *testing.T, unseen uint64, after, before time.Time, lifetime time.Duration) {
	t.Helper()
	// The apiserver looks for due bookmarks once a second.
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
