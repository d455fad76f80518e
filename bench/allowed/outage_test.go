package allowed

import (
	"net/http"
	"testing"

	"github.com/watchproxy/watchproxy/bench/cluster"
)

// Without an answer from upstream, nobody sees more than before.
func TestOutage(t *testing.T) {
	t.Parallel()
	w := sharedWorld(t)
	between := cluster.RelayT(t, w.server.Address)
	s := w.team(t, w.proxyT(t, "https://"+between.Address(), long), 2, 2)
	a, b := s.names[0], s.names[1]
	known, unknown := user("known"), user("unknown")
	s.allow(known, "configs", a)
	s.allow(unknown, "configs", b)
	before := s.list(known, mine+"?resourceVersion=0", a)
	page := s.list(known, mine+"?limit=1", a)
	s.ask(unknown, cluster.Get("/views/mine"+configmaps.path(b)+"?resourceVersion=0"), b) // its token is known
	open := s.follow(known, before.keys()...)
	// Other tests may have made namespaces that are not reviewed yet.
	cluster.Eventually(t, "all namespaces are reviewed", func() bool {
		between.Mend()
		s.ask(known, cluster.Get(mine), a)
		between.Cut()
		return s.ask(known, cluster.Get(mine+"?resourceVersion=0"), a).Status == http.StatusOK
	})
	for _, query := range []string{"?resourceVersion=0", "", "?limit=1", "?watch=true&resourceVersion=0&timeoutSeconds=1", fromState + "&timeoutSeconds=1&resourceVersion=" + before.ResourceVersion} {
		for _, c := range []caller{unknown, user("stranger")} {
			s.expect(http.StatusServiceUnavailable, c, cluster.Get(mine+query))
		}
		if got := s.ask(known, cluster.Get(mine+query), a); got.Status != http.StatusOK && got.Status != http.StatusServiceUnavailable {
			t.Errorf("%q: %d %.300s", query, got.Status, got.Body)
		}
	}
	after := s.list(known, mine+"?resourceVersion=0", a)
	if d := differs(before.items, after.items); d != "" || len(after.items) == 0 {
		t.Errorf("the list from the cache: %d objects, %s", len(after.items), d)
	}
	s.list(known, following(page.Continue).Target, a)
	between.Mend()
	cluster.Eventually(t, "upstream is asked again", func() bool { return s.ask(unknown, cluster.Get(mine), b).Status == http.StatusOK })
	s.expects(open, []string{a}, "ADDED "+s.write(a))
}
