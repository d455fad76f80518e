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
		if sent, took := m.Sum("watchproxy_reviews_total", reviews), m.Sum("watchproxy_review_duration_seconds_count", reviews); sent != 1 || took != 1 {
			t.Errorf("%s: %v sent, %v took time", reviews, sent, took)
		}
	}
	for _, outcome := range []string{"token", "access"} {
		if n := m.Sum("watchproxy_review_cache_bytes", cluster.Label("outcome", outcome)); n == 0 {
			t.Errorf("no outcome of %s is remembered", outcome)
		}
	}
}
