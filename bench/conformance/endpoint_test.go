package conformance

import (
	"testing"

	"github.com/watchproxy/watchproxy/bench/cluster"
)

type (
	// request is the request of a row.
	request = cluster.Request
	// reply is the response.
	reply = cluster.Answer
)

func get(target string) request { return cluster.Get(target) }

// must sends a request that the test depends on, and fails the test if the status differs.
func must(tb testing.TB, e *cluster.Endpoint, r request, status int) reply {
	tb.Helper()
	got := e.AskT(tb, r)
	if got.Status != status {
		tb.Fatalf("%s: %s %s: %d instead of %d\n%.2000s", e.Name, r.Method, r.Target, got.Status, status, got.Body)
	}
	return got
}
