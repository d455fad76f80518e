package allowed

import (
	"net/http"
	"strings"
	"testing"

	"github.com/watchproxy/watchproxy/bench/cluster"
)

// Only the apiserver can make Tables of events, but it has no list of the namespaces that a user may read. So
// kubectl gets whole events, which it accepts as well. A client of Tables alone gets 400.
func TestNextBestForm(t *testing.T) {
	t.Parallel()
	w := sharedWorld(t)
	s := w.team(t, mindful(t), 2, 0)
	who := user("shaper")
	s.allow(who, "events", s.names[0])
	s.writeEvents()
	const old = "application/json;as=Table;g=meta.k8s.io;v=v1beta1"
	for _, query := range []string{"?resourceVersion=0", "?resourceVersion=0&includeObject=Object"} {
		target := "/views/mine" + events.path("") + query
		a := s.ask(who, cluster.Get(target).With("Accept", inTable+","+old+","+inJSON), s.names[0])
		if l, err := decode(a); err != nil || a.Status != http.StatusOK || len(l.items) != 1 || !strings.Contains(string(a.Body), `"kind":"EventList"`) {
			t.Errorf("%s for kubectl: %d %.300s", target, a.Status, a.Body)
		}
		if a := s.ask(who, cluster.Get(target).With("Accept", inTable)); a.Status != http.StatusBadRequest {
			t.Errorf("%s as a Table alone: %d %.300s", target, a.Status, a.Body)
		}
	}
}
