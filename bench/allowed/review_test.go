package allowed

import (
	"slices"
	"strings"
	"testing"

	"github.com/watchproxy/watchproxy/bench/cluster"
)

// reviews returns the number of reviews of access that a proxy has sent.
func (s *team) reviews() int {
	s.t.Helper()
	return int(s.process.MetricsT(s.t).Sum("watchproxy_reviews_total", `resource="subjectaccessreviews"`))
}

// While decisions count, no namespace is reviewed twice for a user's lists.
func TestReviewsCount(t *testing.T) {
	t.Parallel()
	w := sharedWorld(t)
	s := w.team(t, w.proxyT(t, w.server.URL, long), 6, 1)
	who, may := user("counted"), s.names[:3]
	s.allow(who, "configs", may...)
	old := s.list(who, mine, may...)
	for range 6 {
		s.add(1)
	}
	for i := range 30 {
		s.list(who, mine+[]string{"", "?resourceVersion=0", "?limit=1"}[i%3], may...)
		s.list(who, mine+"?resourceVersionMatch=Exact&resourceVersion="+old.ResourceVersion, may...)
	}
	// Other tests may add namespaces meanwhile.
	all, _, err := listed(t.Context(), w.api, w.adminCaller(), cluster.Get(namespaces.path("")))
	s.must(err)
	most := len(all.items) + 1
	if n := s.reviews(); n > most {
		t.Errorf("%d reviews, at most %d were due", n, most)
	} else {
		t.Logf("%d reviews of at most %d", n, most)
	}
}

// Namespaces are shown to those who may read one of the view's resources in them. Views with other
// resources show others.
func TestTwoViews(t *testing.T) {
	t.Parallel()
	w := sharedWorld(t)
	s := w.team(t, mindful(t), 2, 1)
	who := user("twice")
	s.allow(who, "configs", s.names[0])
	s.allow(who, "pods", s.names[1])
	for _, of := range []struct {
		view string
		want []string
	}{{"configs", s.names[:1]}, {"pods", s.names[1:]}, {"some", s.names}, {"mine", nil}, {"configs", s.names[:1]}} {
		l := s.list(who, "/views/"+of.view+namespaces.path(""), of.want...)
		if got := strings.Fields(keys(l)); !slices.Equal(got, of.want) {
			t.Errorf("the view %s shows %v instead of %v", of.view, got, of.want)
		}
	}
}
