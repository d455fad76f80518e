package access

import (
	"strings"
	"testing"
)

// Reads as an impersonated user come from the cache, if the caller has the right that the verb
// impersonate gives.
func TestImpersonatedReadsAreCached(t *testing.T) {
	w := sharedWorld(t)
	f := closedFront(t)
	f.warm(t, w.callers["admin"], collections())
	for name, c := range w.callers {
		if !strings.Contains(name, " as ") {
			continue
		}
		before, want := f.fromCache(t), 0
		for _, r := range []request{
			{target: "/api/v1/namespaces/" + teamA + "/pods?resourceVersion=0"},
			{target: "/api/v1/namespaces/" + teamA + "/pods/one?resourceVersion=0"},
			{target: "/api/v1/namespaces/" + teamA + "/pods?" + watchWithState, watches: true},
		} {
			theirs, got := w.server.must(t, c, r), f.must(t, c, r)
			if theirs.status != got.status {
				t.Errorf("%s: %s: %d instead of %d", name, r.target, got.status, theirs.status)
			}
			if theirs.status == ok && !c.uncached {
				want++
			}
		}
		if cached := f.fromCache(t) - before; cached != want {
			t.Errorf("%s: %d answers came from the cache, want %d", name, cached, want)
		}
	}
}

// Upstream may accept clients without credentials under conditions of its own, so their reads never
// come from the cache.
func TestAnonymousReadsAreForwarded(t *testing.T) {
	w := sharedWorld(t)
	f := openFront(t)
	f.warm(t, w.callers["admin"], collections())
	const configs = "/api/v1/namespaces/" + teamB + "/configmaps"
	for _, name := range []string{"anonymous", "basic", "no token"} {
		before := f.fromCache(t)
		for _, r := range []request{
			{target: configs + "?resourceVersion=0"},
			{target: configs},
			{target: "/apis"},
			{target: "/openapi/v2"},
			{target: configs + "?" + watchWithState, watches: true},
		} {
			if got := f.must(t, w.callers[name], r); got.status != ok && strings.HasPrefix(r.target, configs) {
				t.Errorf("%s: %s: %d", name, r.target, got.status)
			}
		}
		if cached := f.fromCache(t) - before; cached != 0 {
			t.Errorf("%s: %d answers came from the cache", name, cached)
		}
	}
}
