package conformance

import (
	"testing"

	"github.com/watchproxy/watchproxy/bench/cluster"
)

type (
	// request is what a row sends.
	request = cluster.Request
	// reply is what came back. The body of a watch is not read.
	reply = cluster.Answer
)

func get(target string) request { return cluster.Get(target) }

// must asks for what the test itself needs.
func must(tb testing.TB, e *cluster.Endpoint, r request, status int) reply {
	tb.Helper()
	got := e.AskT(tb, r)
	if got.Status != status {
		tb.Fatalf("%s: %s %s: %d instead of %d\n%.2000s", e.Name, r.Method, r.Target, got.Status, status, got.Body)
	}
	return got
}
