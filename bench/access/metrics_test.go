package access

import (
	"testing"

	"github.com/watchproxy/watchproxy/bench/cluster"
)

// The first request of a caller costs a review of the token and one of the access, and the second
// one neither. The metrics say so.
func TestReviewMetrics(t *testing.T) {
	w := sharedWorld(t)
	f := w.startFront(t, w.api.URL, proxyUser, "")
	r := request{target: "/api/v1/namespaces/" + teamA + "/pods?resourceVersion=0"}
	for range 2 {
		f.must(t, w.callers["reader"], r)
	}
	m := f.proxy.MetricsT(t)
	for _, reviews := range []string{`resource="tokenreviews"`, `resource="subjectaccessreviews"`} {
		sent, took, hits := m.Sum("watchproxy_reviews_total", reviews), m.Sum("watchproxy_review_duration_seconds_count", reviews), m.Sum("watchproxy_review_cache_hits_total", reviews)
		if sent != 1 || took != 1 || hits < 1 {
			t.Errorf("%s: %v sent, %v took time, %v answered from memory", reviews, sent, took, hits)
		}
	}
	for _, outcome := range []string{"token", "access"} {
		if n := m.Sum("watchproxy_review_cache_entries", cluster.Label("outcome", outcome)); n != 1 {
			t.Errorf("%v outcomes of %s are remembered", n, outcome)
		}
	}
	if n := m.Sum("watchproxy_reviews_refused_total"); n != 0 {
		t.Errorf("%v reviews were refused", n)
	}
}
