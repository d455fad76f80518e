//go:build !race

package trace

import (
	"net/http"
	"testing"
)

// Without tracing, a step allocates no memory.
func TestNoCostWithoutTracing(t *testing.T) {
	out, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://localhost", http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	if n := testing.AllocsPerRun(100, func() {
		_, span := Start(t.Context(), "cache")
		End(span, http.StatusOK, "cache", "", "")
		EndUpstream(Upstream(out), nil, nil)
	}); n > 0 {
		t.Errorf("%v allocations", n)
	}
}
