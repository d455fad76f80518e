package access

import (
	"testing"

	"github.com/watchproxy/watchproxy/bench/conformance"
)

// Every caller gets discovery and OpenAPI as from the apiserver.
func TestDiscovery(t *testing.T) {
	t.Parallel()
	w := sharedWorld(t)
	f := openFront(t)
	const aggregated = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"
	documents := []request{
		{target: "/api", accept: aggregated},
		{target: "/apis?timeout=32s", accept: aggregated},
		{target: "/openapi/v3"},
		{target: "/openapi/v3/version"},
		{target: "/openapi/v3/apis/none.example/v1"},
		{target: "/apis"},
		{target: "/version"},
	}
	seen := map[int]bool{}
	for _, c := range w.callers {
		for _, r := range documents {
			want := w.server.must(t, c, r)
			same := func(body []byte) ([]byte, error) { return body, nil }
			if err := conformance.Compare(want.settled(), f.must(t, c, r).settled(), same); err != nil {
				t.Errorf("%s: %s: %v", c.name, r.target, err)
			}
			seen[want.status] = true
		}
	}
	if !seen[ok] || !seen[forbidden] || !seen[unknown] || !seen[missing] {
		t.Errorf("the apiserver answers only with %v", seen)
	}
}
