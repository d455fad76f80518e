package allowed

import (
	"fmt"
	"net/http"
	"slices"
	"testing"

	"github.com/watchproxy/watchproxy/bench/cluster"
)

// mine is the collection that most tests read.
var mine = "/views/mine" + configmaps.path("")

// team has namespaces with marks in their names, for one test.
type team struct {
	*world
	*proxy
	t     *testing.T
	names []string
	marks map[string]string
	made  int
}

// team creates namespaces, each with ConfigMaps.
func (w *world) team(t *testing.T, p *proxy, count, objects int) *team {
	t.Helper()
	s := &team{world: w, proxy: p, t: t, marks: map[string]string{}}
	for range count {
		name, mark, err := w.namespace(t.Context(), "")
		s.must(err)
		s.names, s.marks[name] = append(s.names, name), mark
		for range objects {
			s.write(name)
		}
	}
	return s
}

// write creates a ConfigMap and returns its key.
func (s *team) write(namespace string) (key string) {
	s.t.Helper()
	s.made++
	name := fmt.Sprintf("t-%s-%d", s.marks[namespace], s.made)
	s.creates(configmaps, namespace, name)
	return namespace + "/" + name
}

// creates creates an object with the mark of its namespace.
func (s *team) creates(r resource, namespace, name string) {
	s.t.Helper()
	o := object(r, name, "web", s.marks[namespace])
	if r == events {
		o.Object["involvedObject"] = map[string]any{"namespace": namespace}
	}
	s.must(s.create(s.t.Context(), r, namespace, o))
}

func (s *team) must(err error) {
	s.t.Helper()
	if err != nil {
		s.t.Fatal(err)
	}
}

// allow gives a role in some of the namespaces, and waits until the apiserver uses it.
func (s *team) allow(c caller, role string, in ...string) {
	s.t.Helper()
	for _, n := range in {
		s.must(s.bind(s.t.Context(), n, role, cluster.Users(c.name)[0]))
	}
	s.must(s.settled(s.t.Context()))
}

// forbid takes a role away.
func (s *team) forbid(c caller, role, in string) {
	s.t.Helper()
	s.must(s.unbind(s.t.Context(), in, role, c.name))
	s.must(s.settled(s.t.Context()))
}

// ask sends a request to the proxy. No other namespaces than those given may be shown.
func (s *team) ask(c caller, r cluster.Request, may ...string) cluster.Answer {
	s.t.Helper()
	a, err := get(s.t.Context(), s.Endpoint, c, r)
	if err != nil {
		s.t.Error(err)
	}
	s.only(c.name+" "+r.Method+" "+r.Target, a, may...)
	return a
}

// expect is ask, and checks the status.
func (s *team) expect(status int, c caller, r cluster.Request, may ...string) cluster.Answer {
	s.t.Helper()
	a := s.ask(c, r, may...)
	if a.Status != status {
		s.t.Errorf("%s: %s %s: %d instead of %d: %.300s", c.name, r.Method, r.Target, a.Status, status, a.Body)
	}
	return a
}

// only checks the namespaces that an answer shows.
func (s *team) only(what string, a cluster.Answer, may ...string) {
	s.t.Helper()
	for shown := range s.world.marks.shown(a) {
		if !slices.Contains(may, shown) {
			s.t.Errorf("%.600s shows %s, of %v: %d %.300s", what, shown, may, a.Status, a.Body)
		}
	}
}

// list sends a request for a list that must be answered.
func (s *team) list(c caller, target string, may ...string) list {
	s.t.Helper()
	l, err := decode(s.expect(http.StatusOK, c, cluster.Get(target), may...))
	s.must(err)
	return l
}
