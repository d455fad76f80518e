//go:build verify

package allowed

import (
	"testing"
	"time"

	"github.com/watchproxy/watchproxy/bench/cluster"
)

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
