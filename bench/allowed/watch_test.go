package allowed

import (
	"context"
	"maps"
	"net/http"
	"slices"
	"strings"
	"testing"

	rbacv1 "k8s.io/api/rbac/v1"

	"github.com/watchproxy/watchproxy/bench/cluster"
	"github.com/watchproxy/watchproxy/bench/conformance"
)

// fromState begins a watch with the state, as client-go does.
const fromState = "?watch=true&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true"

// watch opens a watch, which ends with the test at the latest.
func (s *team) watch(c caller, target string) <-chan conformance.Event {
	s.t.Helper()
	ctx, cancel := context.WithCancel(s.t.Context())
	resp, err := s.Watch(ctx, c.as(cluster.Get(target)))
	if err != nil {
		cancel()
		s.t.Fatalf("%s: %v", c.name, err)
	}
	const room = 1000
	events, done := make(chan conformance.Event, room), make(chan struct{})
	go func() {
		defer close(done)
		defer close(events)
		defer resp.Body.Close()
		for e, err := range conformance.Events(resp) {
			if err != nil {
				return
			}
			events <- e
		}
	}()
	s.t.Cleanup(func() { cancel(); <-done })
	return events
}

// follow opens a watch and receives its state, which has some objects.
func (s *team) follow(c caller, keys ...string) <-chan conformance.Event {
	s.t.Helper()
	of := s.watch(c, mine+fromState)
	may := map[string]bool{}
	for _, key := range keys {
		namespace, _, _ := strings.Cut(key, "/")
		may[namespace] = true
	}
	var got, want []string
	in := slices.Collect(maps.Keys(may))
	for e := s.next(of, in...); !e.InitialEnd; e = s.next(of, in...) {
		got = append(got, e.Type+" "+e.Key)
	}
	for _, key := range keys {
		want = append(want, "ADDED "+key)
	}
	slices.Sort(got)
	slices.Sort(want)
	if !slices.Equal(got, want) {
		s.t.Errorf("%s: the state is %v instead of %v", c.name, got, want)
	}
	return of
}

// next returns the next event, which may show only some namespaces. If the watch has ended, the
// event is empty.
func (s *team) next(of <-chan conformance.Event, may ...string) conformance.Event {
	s.t.Helper()
	e := cluster.Receive(s.t, "an event", of)
	s.only("an event", cluster.Answer{Body: e.Line}, may...)
	return e
}

// expects receives events, such as "ADDED namespace/name", between bookmarks.
func (s *team) expects(of <-chan conformance.Event, may []string, events ...string) {
	s.t.Helper()
	for _, want := range events {
		e := s.next(of, may...)
		for e.Type == "BOOKMARK" {
			e = s.next(of, may...)
		}
		if got := e.Type + " " + e.Key; got != want {
			s.t.Errorf("the event is %s %.300s instead of %s", got, e.Line, want)
		}
	}
}

// No watch of any user begins at a resourceVersion: nobody can tell what its client was shown before.
// That may have been by another identity of the user, by another replica or before a restart.
func TestNoWatchResumes(t *testing.T) {
	t.Parallel()
	w := sharedWorld(t)
	s := w.team(t, w.proxyT(t, w.server.URL, short), 2, 1)
	other := *s
	other.proxy = mindful(t)
	a, b := s.names[0], s.names[1]
	for group, in := range map[string]string{"few": a, "more": b} {
		s.must(s.bind(t.Context(), in, "configs", rbacv1.Subject{APIGroup: rbacv1.GroupName, Kind: rbacv1.GroupKind, Name: group}))
	}
	s.must(s.settled(t.Context()))
	before, after := user("many-old"), user("many-new")
	const watch, begins = "?watch=true&timeoutSeconds=1&", "sendInitialEvents=true&resourceVersionMatch=NotOlderThan&"
	at := "resourceVersion=" + s.list(before, mine, a).ResourceVersion
	refused := func(s *team, c caller, query string) {
		t.Helper()
		got := s.expect(http.StatusMethodNotAllowed, c, cluster.Get(mine+watch+query))
		if !strings.Contains(string(got.Body), "sendInitialEvents=true") {
			t.Errorf("the refusal names no remedy: %s", got.Body)
		}
	}
	for _, c := range []caller{before, after, w.adminCaller(), user("nothing")} {
		for _, query := range []string{at, at + "&sendInitialEvents=false&resourceVersionMatch=NotOlderThan", at + "&allowWatchBookmarks=true"} {
			refused(s, c, query)
			refused(&other, c, query)
		}
	}
	s.must(s.process.Stop())
	s.must(s.process.Start(t.Context()))
	refused(s, before, at)
	refused(s, after, at)
	for _, query := range []string{"", "resourceVersion=0", begins + at} {
		if got := s.expect(http.StatusOK, after, cluster.Get(mine+watch+query), a, b); len(s.world.marks.shown(got)) != 2 {
			t.Errorf("%s: %.300s", query, got.Body)
		}
	}
	cluster.Eventually(t, "the new process knows that nodes have no namespace", func() bool {
		return s.ask(w.adminCaller(), cluster.Get("/views/mine/api/v1/nodes"+watch+at)).Status == http.StatusOK
	})
	s.expect(http.StatusOK, before, cluster.Get("/views/mine"+configmaps.path(a)+watch+at), a)
}

// The most recent events are shown, although the apiserver answers other reads of them. Only it can make
// Tables of events, but it has no list of the namespaces that a user may read. So kubectl gets whole events,
// which it accepts as well. A client of Tables alone gets 400.
func TestEvents(t *testing.T) {
	t.Parallel()
	w := sharedWorld(t)
	s := w.team(t, mindful(t), 2, 0)
	who := user("second")
	s.allow(who, "events", s.names[0])
	for _, n := range s.names {
		s.creates(events, n, "e-"+s.marks[n])
	}
	target, want := "/views/mine"+events.path(""), []string{s.names[0] + "/e-" + s.marks[s.names[0]]}
	for _, query := range []string{"", "?limit=500", "?resourceVersion=0"} {
		if l := s.list(who, target+query, s.names[0]); !slices.Equal(l.keys(), want) {
			t.Errorf("%q: %v", query, l.keys())
		}
	}
	s.expects(s.watch(who, target+fromState), s.names[:1], "ADDED "+want[0])
	const old = "application/json;as=Table;g=meta.k8s.io;v=v1beta1"
	for _, query := range []string{"?resourceVersion=0", "?resourceVersion=0&includeObject=Object"} {
		a := s.expect(http.StatusOK, who, cluster.Get(target+query).With("Accept", inTable+","+old+","+inJSON), s.names[0])
		if l, err := decode(a); err != nil || !slices.Equal(l.keys(), want) || !strings.Contains(string(a.Body), `"kind":"EventList"`) {
			t.Errorf("for kubectl: %.300s", a.Body)
		}
		s.expect(http.StatusBadRequest, who, cluster.Get(target+query).With("Accept", inTable))
	}
}

// A watch shows the namespaces that its user may list and watch.
func TestBothVerbs(t *testing.T) {
	t.Parallel()
	w := sharedWorld(t)
	s := w.team(t, mindful(t), 4, 1)
	who := user("both")
	for i, role := range []string{"configs", "lists", "watches"} {
		s.allow(who, role, s.names[i])
	}
	shown := s.list(who, mine, s.names[:2]...).keys()[:1]
	for _, query := range []string{"?watch=true", "?watch=true&resourceVersion=0", fromState} {
		open := s.watch(who, mine+query)
		for _, key := range shown {
			s.expects(open, s.names[:1], "ADDED "+key)
		}
		for _, n := range s.names[1:] {
			s.write(n)
		}
		last := s.write(s.names[0])
		s.expects(open, s.names[:1], "ADDED "+last)
		shown = append(shown, last)
		slices.Sort(shown)
	}
}

// For a user who may read nothing, no collection without namespaces is cached, nor is it shown if others have
// filled the cache.
func TestNobodyFillsCaches(t *testing.T) {
	t.Parallel()
	w := sharedWorld(t)
	s := w.team(t, w.proxyT(t, w.server.URL, long), 0, 0)
	refused := func(path string) {
		t.Helper()
		for _, query := range []string{"", "?watch=true", "?limit=1", "?resourceVersion=0"} {
			s.expect(http.StatusForbidden, user("nothing"), cluster.Get("/views/mine"+path+query))
		}
	}
	const nodes, roles = "/api/v1/nodes", "/apis/rbac.authorization.k8s.io/v1/clusterroles"
	for _, path := range []string{nodes, roles, "/apis/none.test/v1/things"} {
		refused(path)
	}
	for _, resource := range []string{"nodes", "clusterroles"} {
		if s.process.CachedT(t, resource) {
			t.Errorf("%s are cached", resource)
		}
	}
	s.expect(http.StatusOK, w.adminCaller(), cluster.Get("/views/mine"+roles+"?resourceVersion=0"))
	if !s.process.CachedT(t, "clusterroles") {
		t.Error("an admin's list fills no cache")
	}
	refused(roles)
}
