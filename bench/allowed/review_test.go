package allowed

import (
	"slices"
	"strings"
	"testing"
	"time"

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

// Open watches of a user share their reviews.
func TestReviewsOfWatches(t *testing.T) {
	t.Parallel()
	w := sharedWorld(t)
	const ttl, watches, lasts = 8 * time.Second, 10, 7 * time.Second
	s := w.team(t, w.proxyT(t, w.server.URL, "authorization: {webhook: {cacheAuthorizedTTL: 8s, cacheUnauthorizedTTL: 8s}}\n"), 4, 1)
	who, may := user("late"), s.names[:3]
	s.allow(who, "configs", may...)
	began := time.Now()
	for range watches {
		s.next(s.watch(who, mine+fromState), may...)
	}
	cluster.Pause(t.Context(), lasts)
	all, _, err := listed(t.Context(), w.api, w.adminCaller(), cluster.Get(namespaces.path("")))
	s.must(err)
	// Decisions are renewed in the last quarter of their time at the earliest.
	times := int(time.Since(began)/(ttl*3/4)) + 1
	once := len(all.items) + 1 + len(may) + 1 // the right to list, and where there is one to watch
	if n, most := s.reviews(), times*once; n > most {
		t.Errorf("%d reviews in %v, at most %d were due", n, time.Since(began), most)
	} else {
		t.Logf("%d reviews in %v of at most %d", n, time.Since(began).Round(time.Second), most)
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
