package access

import (
	"net/http"
	"testing"

	"github.com/watchproxy/watchproxy/bench/cluster"
)

// rememberAll are the settings of a proxy that lets anonymous clients in and keeps reviews for longer
// than a test lasts.
const rememberAll = `
authentication: {anonymous: {enabled: true}, webhook: {cacheTTL: 1h}}
authorization: {webhook: {cacheAuthorizedTTL: 1h, cacheUnauthorizedTTL: 1h}}
`

// While upstream is down, the cache answers only callers whose reviews are cached.
func TestReviewsUnavailable(t *testing.T) {
	t.Parallel()
	w := sharedWorld(t)
	between := cluster.RelayT(t, w.api.Address)
	f := w.startFront(t, "https://"+between.Address(), proxyUser, rememberAll).warmed(t, w)
	const list = "/api/v1/namespaces/" + teamA + "/pods?resourceVersion=0"
	known := []string{"reader", "certificate"}
	for _, name := range known {
		f.must(t, w.callers[name], request{target: list}) // the cache fills
		if got := f.must(t, w.callers[name], request{target: list}); got.status != ok {
			t.Fatalf("%s: %d %s", name, got.status, got.body)
		}
	}
	before := f.fromCache(t)
	between.Cut()
	for _, name := range known {
		if got := f.must(t, w.callers[name], request{target: list}); got.status != ok {
			t.Errorf("%s, reviewed before: %d %s", name, got.status, got.body)
		}
	}
	if after := f.fromCache(t); after != before+len(known) {
		t.Errorf("%d answers came from the cache, want %d", after-before, len(known))
	}
	for _, name := range []string{
		"admin", "one", "nobody", "robot", "garbage", "anonymous", "certified nobody", "certified node", "token as reader", "certificate as target",
	} {
		got := f.must(t, w.callers[name], request{target: list})
		if got.status != http.StatusServiceUnavailable || got.header.Get("Retry-After") == "" {
			t.Errorf("%s: %d %s", name, got.status, got.body)
		}
	}
	if after := f.fromCache(t); after != before+len(known) {
		t.Error("somebody was answered who was not reviewed")
	}
}
