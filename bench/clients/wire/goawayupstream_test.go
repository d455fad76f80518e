package wire

import (
	"fmt"
	"net/http"
	"sync"
	"testing"

	"github.com/watchproxy/watchproxy/bench/cluster"
)

// An apiserver ends HTTP/2 connections at random (--goaway-chance). The writes of others that share
// the connection do not fail: short ones are sent again, and long ones have connections of their own.
func TestUpstreamEndsConnections(t *testing.T) {
	t.Parallel()
	const clients, writes, long = 20, 50, 10
	api := cluster.APIServerT(t, cluster.Options{Flags: []string{"--goaway-chance=0.02"}})
	p := cluster.ProxyT(t, cluster.ProxyOptions{Kubeconfig: api.Kubeconfig, TLS: true})
	var running sync.WaitGroup
	for client := range clients {
		proxy := p.EndpointT(t)
		running.Go(func() {
			for i := range writes {
				size := 0
				if i%long == 0 {
					size = 100 << 10
				}
				r := creating("default", configMap(fmt.Sprintf("a-%d-%d", client, i), size), false)
				r.Target += "?dryRun=All"
				got, err := proxy.Ask(t.Context(), r)
				if err != nil || got.Status != http.StatusCreated {
					t.Errorf("write %d of client %d: %d %.200s, %v", i, client, got.Status, got.Body, err)
				}
			}
		})
	}
	running.Wait()
}
