package access

import (
	"strings"
	"testing"
)

// Reads as an impersonated user come from the cache, if the caller has the right that the verb
// impersonate gives.
func TestImpersonatedReadsAreCached(t *testing.T) {
	notWithSelf(t)
	w := sharedWorld(t)
	f := w.front(t, proxyUser, "")
	f.warm(t, w.callers["admin"], collections())
	for name, c := range w.callers {
		if !strings.Contains(name, " as ") {
			continue
		}
		for _, r := range []request{
			{target: "/api/v1/namespaces/" + teamA + "/pods?resourceVersion=0"},
			{target: "/api/v1/namespaces/" + teamA + "/pods/one?resourceVersion=0"},
			{target: "/api/v1/namespaces/" + teamA + "/pods?" + watchWithState, watches: true},
		} {
			before := f.fromCache(t)
			want, got := w.server.must(t, c, r), f.must(t, c, r)
			if want.status != got.status {
				t.Errorf("%s: %s: %d instead of %d", name, r.target, got.status, want.status)
			}
			if cached, may := f.fromCache(t) > before, want.status == ok && !c.uncached; cached != may {
				t.Errorf("%s: %s: answered from the cache: %v instead of %v", name, r.target, cached, may)
			}
		}
	}
}
