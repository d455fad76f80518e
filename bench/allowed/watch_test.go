package allowed

import (
	"context"
	"net/http"
	"slices"
	"strings"
	"testing"

	rbacv1 "k8s.io/api/rbac/v1"

	"github.com/watchproxy/watchproxy/bench/cluster"
	"github.com/watchproxy/watchproxy/bench/conformance"
)

// stream is an open watch.
type stream struct {
	events <-chan conformance.Event
	cancel func()
}

// watch opens a watch, which ends with the test at the latest.
func (s *team) watch(c caller, target string) *stream {
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
	return &stream{events, cancel}
}

// follow opens a watch and receives its state, which has some objects.
func (s *team) follow(c caller, keys ...string) *stream {
	s.t.Helper()
	of := s.watch(c, mine+fromState)
	var may []string
	for _, key := range keys {
		namespace, _, _ := strings.Cut(key, "/")
		may = append(may, namespace)
	}
	var got []string
	for e := s.next(of, may...); !e.InitialEnd; e = s.next(of, may...) {
		if e.Type != "ADDED" {
			s.t.Fatalf("%s: the state has %s %.300s", c.name, e, e.Line)
		}
		got = append(got, e.Key)
	}
	slices.Sort(got)
	slices.Sort(keys)
	if !slices.Equal(got, keys) {
		s.t.Errorf("%s: the state is %v instead of %v", c.name, got, keys)
	}
	return of
}

// fromState begins a watch with the state, as client-go does.
const fromState = "?watch=true&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true"

// next returns the next event, which may show only some namespaces. If the watch has ended, the
// event is empty.
func (s *team) next(of *stream, may ...string) conformance.Event {
	s.t.Helper()
	e := cluster.Receive(s.t, "an event", of.events)
	s.only("an event", cluster.Answer{Body: e.Line}, may...)
	return e
}

func expired(e conformance.Event) bool {
	return e.Type == "ERROR" && strings.Contains(string(e.Line), `"code":410`)
}

// expects receives the creations of objects.
func (s *team) expects(of *stream, may []string, keys ...string) {
	s.t.Helper()
	for _, key := range keys {
		if e := s.next(of, may...); e.Type != "ADDED" || e.Key != key {
			s.t.Errorf("the event is %s %.300s instead of %s", e, e.Line, key)
		}
	}
}

// When the namespaces of its user change, a watch ends, and the next one begins with the objects of the
// others. A namespace that gets its first object changes nothing.
func TestWatch(t *testing.T) {
	t.Parallel()
	w := sharedWorld(t)
	s := w.team(t, w.proxyT(t, w.server.URL, short), 3, 0)
	a, b, c := s.names[0], s.names[1], s.names[2]
	who, may := user("resumer"), []string{a, b}
	d := s.add(0)
	s.allow(who, "configs", a, b, d)
	one, two, three := a+"/"+s.write(a), b+"/"+s.write(b), c+"/"+s.write(c)
	open := s.follow(who, one, two)
	s.write(c)
	four := b + "/" + s.write(b)
	s.expects(open, may, four)

	// The user may read d, which has had no object.
	may = append(may, d)
	job := s.write(d)
	s.must(w.remove(t.Context(), configmaps, d, job))
	five := a + "/" + s.write(a)
	s.expects(open, may, d+"/"+job)
	if e := s.next(open, may...); e.Type != "DELETED" || e.Key != d+"/"+job {
		t.Errorf("the event is %s %.300s instead of the deletion of %s", e, e.Line, job)
	}
	s.expects(open, may, five)

	all := append(may, c)
	s.allow(who, "configs", c)
	for _, n := range []string{a, b} {
		if e := s.next(open, all...); expired(e) {
			break
		} else if n == b || e.Type != "BOOKMARK" {
			t.Fatalf("the open watch shows %s %.300s", e, e.Line)
		}
	}
	var states []string
	for key := range versions(s.list(who, mine, all...)) {
		states = append(states, key)
	}
	if !slices.Contains(states, three) {
		t.Errorf("%s is missing in %v", three, states)
	}
	open = s.follow(who, states...)
	s.expects(open, all, c+"/"+s.write(c))

	s.forbid(who, "configs", a)
	if e := s.next(open, all...); !expired(e) {
		t.Errorf("the open watch shows %s %.300s", e, e.Line)
	}
	// The decision for lists may be a moment older than the one for watches.
	cluster.Eventually(t, "lists end to show it", func() bool {
		return !strings.Contains(keys(s.list(who, mine, all...)), a+"/")
	})
	states = nil
	may = []string{b, c, d}
	for key := range versions(s.list(who, mine, may...)) {
		states = append(states, key)
	}
	open = s.follow(who, states...)
	s.write(a)
	s.expects(open, may, c+"/"+s.write(c))
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
	l := s.list(before, mine, a)
	refused := func(s *team, c caller, query string) {
		t.Helper()
		got := s.ask(c, cluster.Get(mine+"?watch=true&timeoutSeconds=1&"+query))
		if got.Status != http.StatusMethodNotAllowed || !strings.Contains(string(got.Body), "sendInitialEvents=true") {
			t.Errorf("%s: %s: %d %.300s", c.name, query, got.Status, got.Body)
		}
	}
	at := "resourceVersion=" + l.ResourceVersion
	for _, c := range []caller{before, after, w.adminCaller(), user("nothing")} {
		for _, query := range []string{at, at + "&sendInitialEvents=false&resourceVersionMatch=NotOlderThan", "sendInitialEvents=false&resourceVersionMatch=NotOlderThan", at + "&allowWatchBookmarks=true"} {
			refused(s, c, query)
			refused(&other, c, query)
		}
	}
	s.must(s.process.Stop())
	s.must(s.process.Start(t.Context()))
	refused(s, before, at)
	refused(s, after, at)
	for _, query := range []string{"", "&resourceVersion=0", "&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&" + at} {
		if got := s.ask(after, cluster.Get(mine+"?watch=true&timeoutSeconds=1"+query), a, b); got.Status != http.StatusOK || len(s.world.marks.shown(got)) != 2 {
			t.Errorf("%s: %d %.300s", query, got.Status, got.Body)
		}
	}
	if got := s.ask(w.adminCaller(), cluster.Get("/views/mine/api/v1/nodes?watch=true&timeoutSeconds=1&"+at)); got.Status != http.StatusOK {
		t.Errorf("nodes: %d %.300s", got.Status, got.Body)
	}
	if got := s.ask(before, cluster.Get("/views/mine"+configmaps.path(a)+"?watch=true&timeoutSeconds=1&"+at), a); got.Status != http.StatusOK {
		t.Errorf("one namespace: %d %.300s", got.Status, got.Body)
	}
}

// writeEvents creates an event in each namespace of the team.
func (s *team) writeEvents() {
	s.t.Helper()
	for _, n := range s.names {
		event := object(events, "e-"+s.marks[n], "web", s.marks[n])
		event.Object["involvedObject"] = map[string]any{"namespace": n}
		s.must(s.create(s.t.Context(), events, n, event))
	}
}

// The most recent events are shown, although the apiserver answers other reads of them.
func TestEvents(t *testing.T) {
	t.Parallel()
	w := sharedWorld(t)
	s := w.team(t, mindful(t), 2, 0)
	who := user("second")
	s.allow(who, "events", s.names[0])
	s.writeEvents()
	target := "/views/mine" + events.path("")
	for _, query := range []string{"", "?limit=500", "?resourceVersion=0"} {
		if l := s.list(who, target+query, s.names[0]); len(l.items) != 1 {
			t.Errorf("%q: %s", query, keys(l))
		}
	}
	if e := s.next(s.watch(who, target+fromState), s.names[0]); e.Type != "ADDED" {
		t.Errorf("a watch shows %s", e)
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
	s.list(who, mine, s.names[:2]...)
	for _, query := range []string{"?watch=true", "?watch=true&resourceVersion=0", "?watch=true&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true"} {
		open := s.watch(who, mine+query)
		if e := s.next(open, s.names[0]); e.Type != "ADDED" {
			t.Errorf("%s: %s", query, e)
		}
		for _, n := range s.names[1:] {
			s.write(n)
		}
		last := s.names[0] + "/" + s.write(s.names[0])
		for e := s.next(open, s.names[0]); e.Key != last; e = s.next(open, s.names[0]) {
			if e.Type != "BOOKMARK" && !strings.HasPrefix(e.Key, s.names[0]+"/") {
				t.Fatalf("%s: %s %.300s", query, e, e.Line)
			}
		}
	}
}

func keys(l list) string {
	var all []string
	for _, i := range l.items {
		all = append(all, i.key)
	}
	return strings.Join(all, " ")
}

// For a user who may read nothing, no collection without namespaces is cached.
func TestNobodyFillsCaches(t *testing.T) {
	t.Parallel()
	w := sharedWorld(t)
	s := w.team(t, w.proxyT(t, w.server.URL, long), 0, 0)
	for _, path := range []string{"/api/v1/nodes", "/apis/rbac.authorization.k8s.io/v1/clusterroles", "/apis/none.test/v1/things"} {
		direct, err := get(t.Context(), s.api, user("nobody"), cluster.Get(path))
		s.must(err)
		for _, query := range []string{"", "?watch=true", "?limit=1"} {
			if a := s.ask(user("nobody"), cluster.Get("/views/mine"+path+query)); a.Status != http.StatusForbidden || a.Status != direct.Status {
				t.Errorf("%s%s: %d %.200s", path, query, a.Status, a.Body)
			}
		}
	}
	for _, resource := range []string{"nodes", "clusterroles"} {
		if s.process.CachedT(t, resource) {
			t.Errorf("%s are cached", resource)
		}
	}
}
