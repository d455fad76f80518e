//go:build verify

package conformance

import (
	"testing"
	"time"

	"github.com/watchproxy/watchproxy/bench/cluster"
)

// A copy of a document with a hash expires when upstream's own response does.
func TestDiscoveryExpires(t *testing.T) {
	r := get(hashed(t, openAPI3Path))
	proxied.AskT(t, r)
	time.Sleep(2 * time.Second)
	var expires [2]time.Time
	for i, e := range []*cluster.Endpoint{apiserver, proxied} {
		var err error
		if expires[i], err = time.Parse(time.RFC1123, e.AskT(t, r).Header.Get("Expires")); err != nil {
			t.Fatal(err)
		}
	}
	if apart := expires[1].Sub(expires[0]).Abs(); apart > time.Second {
		t.Errorf("expires at %v instead of %v", expires[1], expires[0])
	}
}
