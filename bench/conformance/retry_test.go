package conformance

import "testing"

// A row whose content moves, and a finite watch, are sent again if the responses differ. If the
// response comes from a wrong source, the row fails without another attempt.
func TestWrongSourceFailsAtOnce(t *testing.T) {
	needsWhole(t)
	for name, r := range map[string]row{
		"moving":       {request: get(configMaps.in("a")+"?resourceVersion=0").With("Accept", table), moving: true},
		"finite watch": {request: get(configMaps.in("a") + "?watch=true&resourceVersion=0&timeoutSeconds=1")},
	} {
		r.from = upstream // although the cache answers
		before := proxied.Sent.Load()
		err := r.try(t.Context())
		if n := proxied.Sent.Load() - before; err == nil || n != 1 {
			t.Errorf("%s: %d requests, %v", name, n, err)
		}
	}
}
