package allowed

import (
	"context"
	"strings"
	"testing"
	"time"

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

// from opens a watch at a resourceVersion.
func (s *team) from(c caller, rv string) *stream {
	s.t.Helper()
	return s.watch(c, mine+"?watch=true&resourceVersion="+rv)
}

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

// A watch that resumes loses nothing. If the namespaces have changed since its resourceVersion, the
// client must list again.
func TestResume(t *testing.T) {
	t.Parallel()
	w := sharedWorld(t)
	s := w.team(t, w.proxyT(t, w.server.URL, short), 3, 1)
	a, b, c := s.names[0], s.names[1], s.names[2]
	who, may := user("resumer"), []string{a, b}
	s.allow(who, "configs", a, b)

	l := s.list(who, mine, may...)
	one := a + "/" + s.write(a)
	s.write(c)
	two := b + "/" + s.write(b)
	open := s.from(who, l.ResourceVersion)
	s.expects(open, may, one, two)
	s.write(c)
	s.expects(open, may, b+"/"+s.write(b))
	s.expects(s.from(who, l.ResourceVersion), may, one, two) // again

	s.allow(who, "configs", c)
	all := append(may, c)
	cluster.Eventually(t, "the old resourceVersion ends after a grant", func() bool {
		again := s.from(who, l.ResourceVersion)
		defer again.cancel()
		return expired(s.next(again, may...))
	})
	if e := s.next(open, may...); !expired(e) {
		t.Errorf("the open watch shows %s %.300s", e, e.Line)
	}
	open, l = s.reopen(who, all)
	s.expects(open, all, c+"/"+s.write(c))

	s.forbid(who, "configs", a)
	cluster.Eventually(t, "the resourceVersion ends after a revocation", func() bool {
		again := s.from(who, l.ResourceVersion)
		defer again.cancel()
		return expired(s.next(again, all...))
	})
	if e := s.next(open, all...); !expired(e) {
		t.Errorf("the open watch shows %s %.300s", e, e.Line)
	}
	// The decision for lists may be a moment older than the one for watches.
	cluster.Eventually(t, "lists end to show it", func() bool {
		return !strings.Contains(keys(s.list(who, mine, all...)), a+"/")
	})
	may = []string{b, c}
	open, _ = s.reopen(who, may)
	s.write(a)
	s.expects(open, may, c+"/"+s.write(c))

	// A namespace gets its first object.
	d := s.add(0)
	s.allow(who, "configs", d)
	late := d + "/" + s.write(d)
	if e := s.next(open, append(may, d)...); !expired(e) {
		t.Errorf("the open watch shows %s %.300s", e, e.Line)
	}
	state := s.list(who, mine, append(may, d)...)
	if !strings.Contains(keys(state), late) {
		t.Errorf("%s is missing in %s", late, keys(state))
	}
	// Another process does not know what its client was shown.
	s.must(s.process.Stop())
	s.must(s.process.Start(t.Context()))
	if e := s.next(s.from(who, state.ResourceVersion), append(may, d)...); !expired(e) {
		t.Errorf("after a restart: %s %.300s", e, e.Line)
	}
	open, _ = s.reopen(who, append(may, d))
	s.expects(open, append(may, d), d+"/"+s.write(d))
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

// reopen lists and watches as clients do, until a watch is accepted. The proxy refuses the newest
// resourceVersion at which it has shown other namespaces. So something must be written.
func (s *team) reopen(c caller, may []string) (open *stream, l list) {
	s.t.Helper()
	began, refused := time.Now(), 0
	cluster.Eventually(s.t, "a list can be watched", func() bool {
		l = s.list(c, mine, may...)
		open = s.watch(c, mine+"?watch=true&allowWatchBookmarks=true&resourceVersion="+l.ResourceVersion)
		select {
		case e := <-open.events:
			if !expired(e) {
				s.t.Fatalf("%s %.300s", e, e.Line)
			}
			refused++
			s.must(s.writesElsewhere(s.t.Context()))
			return false
		case <-time.After(200 * time.Millisecond):
			return true
		}
	})
	s.t.Logf("%d watches were refused in %v", refused, time.Since(began).Round(time.Millisecond))
	return open, l
}
