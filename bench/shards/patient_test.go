package shards

import (
	"context"
	"io"
	"net/http"
	"time"

	"github.com/watchproxy/watchproxy/bench/cluster"
)

// again is the time between two attempts.
const again = 100 * time.Millisecond

// patient sends a request again while the answer is 503. So a view answers while its cache is not
// up to date, and other requests are forwarded then.
func patient(ctx context.Context, e *cluster.Endpoint, r cluster.Request) (a cluster.Answer, err error) {
	for end := time.Now().Add(cluster.Limit); ; time.Sleep(again) {
		if a, err = e.Ask(ctx, r); err != nil || a.Status != http.StatusServiceUnavailable || time.Now().After(end) {
			return a, err
		}
	}
}

// openPatiently is patient for a watch.
func openPatiently(ctx context.Context, e *cluster.Endpoint, r cluster.Request) (*http.Response, error) {
	for end := time.Now().Add(cluster.Limit); ; time.Sleep(again) {
		resp, err := e.Open(ctx, r)
		if err != nil || resp.StatusCode != http.StatusServiceUnavailable || time.Now().After(end) {
			return resp, err
		}
		_, _ = io.Copy(io.Discard, resp.Body)
		_ = resp.Body.Close()
	}
}
